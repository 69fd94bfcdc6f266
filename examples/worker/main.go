// Command worker books payments that arrive as messages, each once.
//
// A broker delivers at least once: a message comes again when the worker died
// before it acknowledged, when another worker takes it over, or when its producer did
// not hear that it had arrived and sent it again. Here the messages are entries of a
// Redis stream, read by a consumer group, and the accounts are in a SQLite file. The
// booking, the key of the message and the outcome are one commit, and the
// acknowledgement follows it: a worker may be killed anywhere.
//
//	worker -redis localhost:6379 -stream payments -db accounts.db
//
// A message has the fields key (chosen by its producer, once for each payment),
// account and amount (in cents):
//
//	redis-cli XADD payments '*' key 8e03978e account alice amount 1200
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver/sqlite"
)

func main() {
	addr := flag.String("redis", "localhost:6379", "address of the Redis server")
	stream := flag.String("stream", "payments", "stream to read")
	group := flag.String("group", "bookkeeping", "consumer group")
	name, _ := os.Hostname()
	consumer := flag.String("consumer", name, "name of this worker in its group; keep it over restarts")
	db := flag.String("db", "accounts.db", "SQLite file of the accounts")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *db, worker{stream: *stream, group: *group, consumer: *consumer}); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("worker", "error", err)
		os.Exit(1)
	}
}

// run opens the stores and works until ctx ends.
func run(ctx context.Context, addr, path string, w worker) error {
	w.redis = redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer w.redis.Close()
	drv, err := sqlite.Open(path)
	if err != nil {
		return err
	}
	defer drv.Close()
	if w.ledger, err = openLedger(ctx, drv); err != nil {
		return err
	}
	if w.idle == 0 {
		w.idle = time.Minute
	}
	done := make(chan error, 1)
	go func() { done <- w.ledger.book.Maintain(ctx) }() // the purge of old keys
	err = w.run(ctx)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), <-done)
	}
	return fmt.Errorf("reading %s: %w", w.stream, err)
}
