// Effects under a lease, each answer of the database and of a provider, and how their messages end:
// tests/it/clients/effects.rs. With the argument "owner" it is an owner that is suspended.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

var (
	ctx    = context.Background()
	direct *pgxpool.Pool
	inbox  *oncebox.Inbox
	// isArmed has the answer to the next begin_effect lost.
	isArmed atomic.Bool
)

type losing struct{ net.Conn }

func (c losing) Write(sent []byte) (int, error) {
	written, err := c.Conn.Write(sent)
	if err == nil && bytes.Contains(sent, []byte("begin_effect")) && isArmed.CompareAndSwap(true, false) {
		time.Sleep(100 * time.Millisecond)
		err = errors.Join(errors.New("the answer was lost"), c.Conn.Close())
	}
	return written, err
}

func connect() {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	direct, err = pgxpool.NewWithConfig(ctx, config.Copy())
	must(err)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := dial(ctx, network, address)
		return losing{connection}, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(err)
	inbox = oncebox.NewInbox(pool, "effects:test", oncebox.InboxOptions{
		AttemptsMax: 3, Backoff: time.Nanosecond, BackoffMax: time.Nanosecond, HandlerTimeout: 20 * time.Second,
	})
}

func execute(sql string, values ...any) {
	_, err := direct.Exec(ctx, sql, values...)
	must(err)
}

func message(key string) oncebox.Message {
	return oncebox.Message{Subject: "a", Payload: []byte("{}"), Headers: map[string]string{"idempotency-key": key}, Deliveries: 1}
}

// provider answers one call after another, and then well.
type provider struct {
	calls, asks int
	answers     []error
	found       oncebox.Found
	refuses     error
}

func (p *provider) effect(step string) oncebox.Effect[string] {
	return oncebox.Effect[string]{Step: step, Call: p.call, Reconcile: p.ask}
}

func (p *provider) call(_ context.Context, key string) (string, error) {
	p.calls++
	if p.calls <= len(p.answers) && p.answers[p.calls-1] != nil {
		return "", p.answers[p.calls-1]
	}
	return "receipt of " + key, nil
}

func (p *provider) ask(_ context.Context, key string) (string, oncebox.Found, error) {
	p.asks++
	return "found " + key, p.found, p.refuses
}

func charging(p *provider) oncebox.LeasedHandler {
	return func(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
		return p.effect("pay").Do(ctx, lease)
	}
}

func write(ctx context.Context, tx pgx.Tx, message oncebox.Message, _ any) error {
	_, err := tx.Exec(ctx, "INSERT INTO effect (key) VALUES ($1)", message.Key)
	return err
}

// run runs the message a number of times and says how each run ended, and how often the provider
// was called and asked, and rows were written.
func run(name string, times int, p *provider, leased oncebox.Leased) {
	if leased.Finish == nil {
		leased.Finish = write
	}
	var ends []string
	for n := range times {
		answer, err := inbox.RunLeased(ctx, leased, message(name))
		end := strings.TrimSpace(fmt.Sprint(answer.Name, " ", answer.Reason, string(answer.Reply)))
		if err != nil {
			end = "error: " + err.Error()
		}
		if n == 0 || end != ends[len(ends)-1] {
			ends = append(ends, end)
		}
		if answer.Name == "retry" {
			time.Sleep(answer.After + answer.After/2)
		}
	}
	var rows, effects int
	must(direct.QueryRow(ctx, "SELECT (SELECT count(*) FROM effect WHERE key = $1), (SELECT count(*) FROM oncebox.inbox_effect WHERE key = $1)", name).Scan(&rows, &effects))
	fmt.Printf("%s: %d calls, %d asks, %d rows, %d effects: %s\n", name, p.calls, p.asks, rows, effects, strings.Join(ends, " | "))
}

func charged(name string, times int, p *provider) {
	run(name, times, p, oncebox.Leased{Handle: charging(p)})
}

// once fails in its first run, after the effect.
func once(p *provider, isCaught bool) oncebox.Leased {
	runs := 0
	return oncebox.Leased{Handle: func(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
		result, err := p.effect("pay").Do(ctx, lease)
		if runs++; runs == 1 && (err == nil || isCaught) {
			return nil, errors.New("as it was told")
		}
		return result, err
	}}
}

func answers() {
	lost := errors.New("connection reset")
	charged("begun", 2, &provider{})
	p := &provider{}
	run("done", 2, p, once(p, false))
	charged("rejected", 2, &provider{answers: []error{oncebox.Rejected("card declined")}})
	p = &provider{answers: []error{oncebox.Rejected("card declined")}}
	run("remembered", 2, p, once(p, true))
	charged("happened", 2, &provider{answers: []error{lost}, found: oncebox.Happened})
	charged("early", 2, &provider{answers: []error{lost}, found: oncebox.Absent})
	// The wait for a call that may still arrive is no attempt: the first run was the only one.
	var attempts int
	must(direct.QueryRow(ctx, "SELECT attempts FROM oncebox.inbox_claim WHERE key = 'early'").Scan(&attempts))
	if attempts != 1 {
		fmt.Printf("early: %d attempts, not 1\n", attempts)
	}
	execute("UPDATE oncebox.inbox_effect SET started_at = started_at - interval '2 minutes' WHERE key = 'early'")
	charged("early", 1, &provider{found: oncebox.Absent})
	charged("unknown", 3, &provider{answers: []error{lost}, found: oncebox.Unknown})
	charged("no-answer", 2, &provider{answers: []error{lost}, refuses: errors.New("out of order")})
	charged("never", 2, &provider{answers: []error{lost}, refuses: oncebox.Rejected("unknown card")})
	charged("not-sent", 1, &provider{answers: []error{oncebox.NotSent(errors.New("connection refused"))}})
	charged("not-sent", 1, &provider{})
	p = &provider{answers: []error{lost, oncebox.NotSent(errors.New("connection refused"))}}
	run("idempotent", 3, p, oncebox.Leased{Handle: func(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
		return oncebox.Effect[string]{Step: "pay", Call: p.call, IsProviderIdempotent: true}.Do(ctx, lease)
	}})
	isArmed.Store(true)
	charged("own", 1, &provider{})
}

func odd() {
	p := &provider{}
	run("unsaid", 1, p, oncebox.Leased{Handle: func(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
		return oncebox.Effect[string]{Step: "pay", Call: p.call}.Do(ctx, lease)
	}})
	twice := &provider{}
	run("twice", 1, twice, oncebox.Leased{Handle: func(ctx context.Context, lease *oncebox.Lease, message oncebox.Message) (any, error) {
		_, err := twice.effect("pay").Do(ctx, lease)
		must(err)
		return charging(twice)(ctx, lease, message)
	}})
	swallowed := &provider{answers: []error{errors.New("connection reset")}, found: oncebox.Happened}
	run("swallowed", 2, swallowed, oncebox.Leased{Handle: func(ctx context.Context, lease *oncebox.Lease, message oncebox.Message) (any, error) {
		_, _ = charging(swallowed)(ctx, lease, message)
		return "done", nil
	}})
	panics := &provider{found: oncebox.Happened}
	run("panics", 2, panics, oncebox.Leased{Handle: func(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
		effect := panics.effect("pay")
		effect.Call = func(context.Context, string) (string, error) { panic("as it was told") }
		return effect.Do(ctx, lease)
	}})
	p = &provider{}
	run("snoozed", 7, p, oncebox.Leased{Handle: func(context.Context, *oncebox.Lease, oncebox.Message) (any, error) {
		execute("UPDATE oncebox.inbox_snooze SET snoozed_at = snoozed_at - interval '5 hours'")
		return nil, oncebox.Snooze(time.Millisecond, "the ledger is closed")
	}})
	stolen := "UPDATE oncebox.inbox_claim SET epoch = epoch + 1 WHERE key = $1"
	p = &provider{}
	run("lost", 1, p, oncebox.Leased{Handle: func(ctx context.Context, lease *oncebox.Lease, message oncebox.Message) (any, error) {
		execute(stolen, message.Key)
		return charging(p)(ctx, lease, message)
	}})
	p = &provider{}
	run("fenced", 1, p, oncebox.Leased{Handle: charging(p), Finish: func(ctx context.Context, tx pgx.Tx, message oncebox.Message, _ any) error {
		execute(stolen, message.Key)
		return write(ctx, tx, message, nil)
	}})
	runs := 0
	p = &provider{}
	run("conflict", 1, p, oncebox.Leased{Handle: charging(p), Finish: func(ctx context.Context, tx pgx.Tx, message oncebox.Message, _ any) error {
		if runs++; runs == 1 {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
			return err
		}
		return write(ctx, tx, message, nil)
	}})
	p = &provider{}
	run("commits", 2, p, oncebox.Leased{Handle: charging(p), Finish: func(ctx context.Context, tx pgx.Tx, message oncebox.Message, _ any) error {
		_, err := tx.Exec(ctx, "COMMIT")
		return err
	}})
	execute("INSERT INTO oncebox.inbox_claim (scope, tenant, key, fingerprint, owner, lease_until) VALUES ('effects:test', '', 'mismatch', sha256('a'), gen_random_uuid(), clock_timestamp())")
	charged("mismatch", 1, &provider{})
}

// owner calls one provider, is suspended beyond its lease meanwhile, and would call another then.
func owner() {
	leased := oncebox.Leased{Lease: time.Second, Finish: write, Handle: func(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
		for _, step := range []string{"pay", "mail"} {
			effect := oncebox.Effect[string]{Step: step, Call: func(ctx context.Context, key string) (string, error) {
				execute("INSERT INTO called (key, pid) VALUES ($1, $2)", key, os.Getpid())
				for isLeft := len(os.Args) > 2; isLeft; time.Sleep(10 * time.Millisecond) {
					must(direct.QueryRow(context.Background(), "SELECT NOT EXISTS (SELECT FROM effect WHERE key = 'suspended')").Scan(&isLeft))
				}
				return "receipt", nil
			}, Reconcile: func(context.Context, string) (string, oncebox.Found, error) { return "found", oncebox.Happened, nil }}
			if _, err := effect.Do(ctx, lease); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}}
	for {
		answer, err := inbox.RunLeased(ctx, leased, message("suspended"))
		if must(err); answer.Name != "in_flight" || len(os.Args) > 2 {
			fmt.Println("owner:", answer.Name)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func suspended() {
	start := func(arguments ...string) *exec.Cmd {
		process := exec.Command(os.Args[0], append([]string{"owner"}, arguments...)...)
		process.Stdout, process.Stderr = os.Stdout, os.Stderr
		must(process.Start())
		return process
	}
	first := start("first")
	for called := 0; called == 0; time.Sleep(10 * time.Millisecond) {
		must(direct.QueryRow(ctx, "SELECT count(*) FROM called").Scan(&called))
	}
	must(first.Process.Signal(syscall.SIGSTOP))
	must(start().Wait())
	must(first.Process.Signal(syscall.SIGCONT))
	must(first.Wait())
	var calls, rows int
	must(direct.QueryRow(ctx, "SELECT (SELECT count(*) FROM called), (SELECT count(*) FROM effect WHERE key = 'suspended')").Scan(&calls, &rows))
	fmt.Printf("suspended: %d calls, %d rows\n", calls, rows)
}

func main() {
	connect()
	if len(os.Args) > 1 {
		owner()
		return
	}
	execute("CREATE TABLE effect (key text NOT NULL)")
	execute("CREATE TABLE called (key text NOT NULL, pid int NOT NULL)")
	answers()
	odd()
	suspended()
}
