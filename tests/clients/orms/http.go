package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"oncebox"
)

// place writes an order, in the transaction of the claim.
func place(writer http.ResponseWriter, request *http.Request) {
	claim := oncebox.ClaimOf(request.Context())
	_, err := claim.Tx.Exec(request.Context(), "INSERT INTO effects (library) VALUES ('http')")
	if err != nil {
		http.Error(writer, "later", http.StatusInternalServerError)
		return
	}
	writer.Header().Add("Vary", "Accept-Language")
	writer.WriteHeader(http.StatusCreated)
}

// before is a layer that runs before the one for requests once.
func before(do func(http.ResponseWriter, *http.Request), next http.Handler) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		do(writer, request)
		next.ServeHTTP(writer, request)
	})
}

// serve sends each request twice, to layers and routers of others around the layer for requests once.
func serve(ctx context.Context) {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	must(err)
	layer := oncebox.NewIdempotency(pool, oncebox.IdempotencyOptions{Scope: "shop"})
	once := layer.Handler(http.HandlerFunc(place))
	mux := http.NewServeMux()
	mux.Handle("POST /form", before(func(_ http.ResponseWriter, request *http.Request) { _ = request.ParseForm() }, once))
	mux.Handle("POST /read", before(func(_ http.ResponseWriter, request *http.Request) { _, _ = io.ReadAll(request.Body) }, once))
	mux.Handle("POST /part", before(func(_ http.ResponseWriter, request *http.Request) { _, _ = request.Body.Read(make([]byte, 3)) }, once))
	mux.Handle("POST /headers", before(func(writer http.ResponseWriter, _ *http.Request) {
		writer.Header().Add("Vary", "Origin")
		writer.Header().Add("Set-Cookie", "a=1")
	}, once))
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.POST("/gin/:id", func(c *gin.Context) {
		c.Request.Pattern = c.FullPath()
		once.ServeHTTP(c.Writer, c.Request)
	})
	router.POST("/bare-gin/:id", gin.WrapH(once))
	echoes := echo.New()
	echoes.POST("/echo/:id", func(c echo.Context) error {
		c.Request().Pattern = c.Path()
		once.ServeHTTP(c.Response(), c.Request())
		return nil
	})
	echoes.POST("/bare-echo/:id", echo.WrapHandler(once))
	all := map[string]http.Handler{"gin": router, "echo": echoes, "": mux}
	send := func(path, body string, isChunked bool) {
		handler := all[strings.TrimPrefix(strings.Split(path, "/")[1], "bare-")]
		if handler == nil {
			handler = mux
		}
		server := httptest.NewServer(handler)
		defer server.Close()
		for range 2 {
			var content io.Reader = strings.NewReader(body)
			if isChunked {
				content = io.MultiReader(content)
			}
			request, err := http.NewRequest("POST", server.URL+path, content)
			must(err)
			request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			request.Header.Set("Idempotency-Key", "k"+strings.ReplaceAll(path, "/", "-"))
			response, err := http.DefaultClient.Do(request)
			must(err)
			_ = response.Body.Close()
			fmt.Println(path, response.StatusCode, response.Header["Idempotent-Replayed"], response.Header["Vary"], response.Header["Set-Cookie"])
		}
	}
	send("/form", "amount=1", false)
	send("/read", "amount=1", false)
	send("/read", "amount=1", true)
	send("/part", "amount=1", false)
	send("/headers", "amount=1", false)
	for _, framework := range []string{"gin", "echo"} {
		send("/bare-"+framework+"/7", "amount=1", false)
		send("/"+framework+"/7", "amount=1", true)
	}
}
