// Orders through the libraries that teams use, to PostgreSQL and back: enqueues in their transactions,
// then handles the messages in the inbox's, through the same libraries: see tests/it/clients/orms.rs.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"oncebox"
)

type Effect struct {
	ID      int64 `gorm:"primaryKey"`
	Library string
	Amounts pq.Int64Array `gorm:"type:bigint[]"`
}

func (Effect) TableName() string { return "effects" }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func outgoing(library string) oncebox.Outgoing {
	return oncebox.Outgoing{Key: library + ":sent", Subject: "orders.placed", Payload: map[string]string{"library": library}}
}

// Queries has the shape of the code that sqlc makes for database/sql.
type Queries struct{ db DBTX }

type DBTX interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

func (q *Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{tx} }

func (q *Queries) AddEffect(ctx context.Context, library string, amounts []int64) (id int64, err error) {
	insert := "INSERT INTO effects (library, amounts) VALUES ($1, $2) RETURNING id"
	return id, q.db.QueryRowContext(ctx, insert, library, pq.Array(amounts)).Scan(&id)
}

// produce writes and enqueues in one transaction of each library, and once in one that is rolled back.
func produce(ctx context.Context, url string) {
	for _, driver := range []string{"pgx", "postgres"} {
		library := map[string]string{"pgx": "stdlib", "postgres": "pq"}[driver]
		own := url
		if driver == "postgres" { // lib/pq asks for TLS unless it is told not to
			own += "?sslmode=disable"
		}
		database, err := sql.Open(driver, own)
		must(err)
		for _, isKept := range []bool{false, true} {
			tx, err := database.BeginTx(ctx, nil)
			must(err)
			_, err = (&Queries{database}).WithTx(tx).AddEffect(ctx, library+" sent", []int64{1})
			must(err)
			id, err := oncebox.EnqueueSQL(ctx, tx, outgoing(library))
			must(err)
			if id == 0 {
				log.Fatal("enqueued already")
			}
			if isKept {
				must(start(ctx, tx, library))
				must(tx.Commit())
				refuse(ctx, database, library)
			} else {
				must(tx.Rollback())
			}
		}
	}
	database := sqlx.MustConnect("pgx", url)
	tx := database.MustBegin()
	_, err := oncebox.EnqueueSQL(ctx, tx, outgoing("sqlx"))
	must(err)
	must(start(ctx, tx, "sqlx"))
	must(tx.Commit())
	connection, err := pgx.Connect(ctx, url)
	must(err)
	must(pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		started, err := oncebox.StartSaga(ctx, tx, oncebox.Start{Type: "order", BusinessID: "pgx", Data: map[string]int{"order": 1}, Version: 1})
		if err == nil && !started.IsNew {
			err = errors.New("started before")
		}
		return err
	}))
	must(connection.Close(ctx))
	orm, err := gorm.Open(postgres.Open(url), &gorm.Config{PrepareStmt: true, Logger: logger.Discard})
	must(err)
	must(orm.Transaction(func(tx *gorm.DB) error {
		transaction := tx.Statement.ConnPool.(oncebox.SQLTransaction)
		if _, err := oncebox.EnqueueSQL(ctx, transaction, outgoing("gorm")); err != nil {
			return err
		}
		return start(ctx, transaction, "gorm")
	}))
	if _, isTransaction := orm.Statement.ConnPool.(oncebox.SQLTransaction); isTransaction {
		log.Fatal("GORM outside of a transaction is taken for one")
	}
}

// start starts the saga of tests/clients/order.toml twice, which is one.
func start(ctx context.Context, tx oncebox.SQLTransaction, library string) error {
	for _, isNew := range []bool{true, false} {
		started, err := oncebox.StartSagaSQL(ctx, tx, oncebox.Start{Type: "order", BusinessID: library, Data: map[string]int{"order": 1}, Version: 1})
		if err != nil || started.Key != library+":order" || started.IsNew != isNew || started.ID == 0 {
			return fmt.Errorf("%s started %v: %w", library, started, err)
		}
	}
	return nil
}

// refuse starts sagas that cannot start, each of which aborts its transaction.
func refuse(ctx context.Context, database *sql.DB, library string) {
	for reason, start := range map[string]oncebox.Start{
		"used":        {Type: "order", BusinessID: library, Data: map[string]any{"order": 2}},
		"business_id": {Type: "order", BusinessID: "a b", Data: map[string]any{"order": 1}},
		"data":        {Type: "order", BusinessID: "other", Data: map[string]any{"order": "one"}},
		"definition":  {Type: "none", BusinessID: "other", Data: map[string]any{"order": 1}},
	} {
		tx, err := database.BeginTx(ctx, nil)
		must(err)
		_, err = oncebox.StartSagaSQL(ctx, tx, start)
		if refused, isRefused := errors.AsType[*oncebox.SagaRefused](err); !isRefused || refused.Reason != reason {
			log.Fatalf("%s: not refused because of %s: %v", library, reason, err)
		}
		must(tx.Rollback())
	}
}

// on is GORM in the transaction of a handler.
func on(ctx context.Context, orm *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := orm.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
	session.Statement.ConnPool = tx
	return session
}

func withGORM(orm *gorm.DB) oncebox.Handler {
	return func(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
		transaction, err := oncebox.SQLTx(ctx, tx)
		if err != nil {
			return nil, err
		}
		session := on(ctx, orm, transaction)
		effect := Effect{Library: "gorm", Amounts: pq.Int64Array{7, 8}}
		if err := session.Create(&effect).Error; err != nil {
			return nil, err
		}
		// A savepoint, in which a failure is undone.
		_ = session.Transaction(func(nested *gorm.DB) error {
			_ = nested.Create(&Effect{Library: "undone"}).Error
			return nested.Exec("SELECT 1 / 0").Error
		})
		var found []Effect
		err = session.Clauses(clause.Locking{Strength: "UPDATE"}).Where("id = ? AND library = ?", effect.ID, "gorm").Find(&found).Error
		if err != nil || len(found) != 1 || found[0].Amounts[1] != 8 {
			return nil, fmt.Errorf("%v: %w", found, err)
		}
		_, err = oncebox.EnqueueSQL(ctx, transaction, outgoing("behind-gorm"))
		return found, err
	}
}

func withSQLC(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
	transaction, err := oncebox.SQLTx(ctx, tx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = transaction.Rollback() }() // as many do: it ends nothing
	return (&Queries{}).WithTx(transaction).AddEffect(ctx, "sqlc", []int64{9})
}

func withSQLX(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
	transaction, err := oncebox.SQLTx(ctx, tx)
	if err != nil {
		return nil, err
	}
	own := &sqlx.Tx{Tx: transaction, Mapper: sqlx.NewDb(nil, "pgx").Mapper}
	var effect struct {
		ID      int64  `db:"id"`
		Library string `db:"library"`
	}
	err = own.GetContext(ctx, &effect, "INSERT INTO effects (library) VALUES ($1) RETURNING id, library", "sqlx")
	return effect, err
}

func commits(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
	transaction, err := oncebox.SQLTx(ctx, tx)
	if err != nil {
		return nil, err
	}
	if _, err := transaction.ExecContext(ctx, "INSERT INTO effects (library) VALUES ('committed')"); err != nil {
		return nil, err
	}
	return nil, transaction.Commit()
}

func main() {
	ctx, url := context.Background(), os.Getenv("DATABASE_URL")
	if len(os.Args) > 1 {
		serve(ctx)
		return
	}
	produce(ctx, url)
	pool, err := pgxpool.New(ctx, url)
	must(err)
	orm, err := gorm.Open(postgres.Open(url), &gorm.Config{Logger: logger.Discard})
	must(err)
	inbox := oncebox.NewInbox(pool, "orms:test", oncebox.InboxOptions{AttemptsMax: 1, Tracer: measured})
	must(inbox.Register(ctx))
	run := func(library string, handler oncebox.Handler, expected string) {
		for range 2 { // the second one is answered
			message := oncebox.Message{Subject: "a", Payload: []byte("{}"), Headers: map[string]string{"idempotency-key": library + ":handle"}}
			answer, err := inbox.Run(ctx, handler, message)
			must(err)
			fmt.Println(library, answer.Name, string(answer.Reply))
			if answer.Name != expected {
				log.Fatal(answer.Reason)
			}
			if expected == "handled" {
				expected = "replayed"
			}
		}
	}
	run("gorm", withGORM(orm), "handled")
	run("sqlc", withSQLC, "handled")
	run("sqlx", withSQLX, "handled")
	run("commits", commits, "dead")
	families, err := prometheus.DefaultGatherer.Gather()
	must(err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if strings.HasPrefix(family.GetName(), "handler") {
				fmt.Println(family.GetName(), metric.GetLabel()[0].GetValue(), metric.GetHistogram().GetSampleCount(), metric.GetGauge().GetValue())
			}
		}
	}
}
