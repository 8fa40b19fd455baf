package oncetest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// running is in the log of a relay that has made its streams.
	running = "relay is running"
	// logLines of a log are shown by an error.
	logLines = 10
	// stopLimit is how long consumers have to finish.
	stopLimit = 10 * time.Second
)

// Flow runs a relay and your consumers until all messages are done: those that your test has enqueued,
// those that handlers enqueue, and so on. The relay is the program oncebox, on your PostgreSQL and
// nats-server.
type Flow struct {
	DatabaseURL, NATSURL string
	// Program is "oncebox" of PATH when it is empty.
	Program string
	// Streams are made if they are missing, in the words of the relay's option: "ORDERS=orders.>,payments.>".
	Streams   []string
	consumers []consumer
}

type consumer struct {
	name string
	run  func(context.Context) error
}

// Consumer adds one by the names of stream and durable consumer, "ORDERS/payment". It runs until its
// context ends.
func (f *Flow) Consumer(name string, run func(ctx context.Context) error) *Flow {
	f.consumers = append(f.consumers, consumer{name, run})
	return f
}

// Command adds a consumer that is a program, which gets DATABASE_URL and NATS_URL, such as "oncebox",
// "saga", "run", "order.toml" for "SAGAS/oncebox-saga-replies".
func (f *Flow) Command(name string, command ...string) *Flow {
	return f.Consumer(name, func(ctx context.Context) error { return f.program(ctx, command, nil) })
}

// RunUntilQuiet runs them until no message is due, parked or at a consumer; one that is delayed for later
// is not waited for. Its error names the messages that are left after this time, an hour at most, or were
// given up; or says that the relay, or a consumer, has ended.
func (f *Flow) RunUntilQuiet(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	begun := make(chan struct{})
	ends := make(chan error, len(f.consumers)+1)
	var all sync.WaitGroup
	run := func(what string, work func(context.Context) error) {
		all.Go(func() {
			err := work(ctx)
			if ctx.Err() == nil {
				ends <- fmt.Errorf("%s has ended: %w", what, cmp.Or(err, errors.New("without an error")))
			}
		})
	}
	run("the relay", func(ctx context.Context) error {
		command := []string{f.oncebox(), "relay"}
		if len(f.Streams) > 0 {
			command = append(command, "--stream", strings.Join(f.Streams, ";"))
		}
		return f.program(ctx, command, sync.OnceFunc(func() { close(begun) }))
	})
	for _, consumer := range f.consumers {
		run("the consumer "+consumer.name, func(ctx context.Context) error {
			// It would find no stream before.
			select {
			case <-begun:
				return consumer.run(ctx)
			case <-ctx.Done():
				return nil
			}
		})
	}
	isQuiet := make(chan error, 1)
	all.Go(func() { isQuiet <- f.quiet(ctx, within) })
	var err error
	select {
	case err = <-isQuiet:
	case err = <-ends:
	}
	cancel()
	stopped := make(chan struct{})
	go func() { all.Wait(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(2 * stopLimit):
		err = errors.Join(err, fmt.Errorf("a consumer did not end within %s of its context", 2*stopLimit))
	}
	return err
}

// program runs one until its context ends.
func (f *Flow) program(ctx context.Context, command []string, begun func()) error {
	process := f.command(ctx, command)
	log, err := process.StderrPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		return err
	}
	var last []string
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		last = append(last, lines.Text())
		last = last[max(0, len(last)-logLines):]
		if begun != nil && strings.Contains(lines.Text(), running) {
			begun()
		}
	}
	return errors.Join(process.Wait(), errors.New(strings.Join(last, "\n")))
}

func (f *Flow) quiet(ctx context.Context, within time.Duration) error {
	seconds := min(max(within, time.Second), time.Hour).Round(time.Second).Seconds()
	command := []string{f.oncebox(), "status", "--until-quiet", strconv.Itoa(int(seconds))}
	for _, consumer := range f.consumers {
		command = append(command, "--consumer", consumer.name)
	}
	said, err := f.command(ctx, command).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("not all messages are done (%w): %s", err, said)
	}
	return err
}

func (f *Flow) oncebox() string {
	if f.Program == "" {
		return "oncebox"
	}
	return f.Program
}

// command ends when its context does, by a signal first.
func (f *Flow) command(ctx context.Context, words []string) *exec.Cmd {
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Env = append(os.Environ(), "DATABASE_URL="+f.DatabaseURL, "NATS_URL="+f.NATSURL, "ONCEBOX_HTTP_LISTEN=off", "ONCEBOX_LOG=info")
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = stopLimit
	return command
}
