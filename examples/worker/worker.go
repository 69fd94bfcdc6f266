package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// worker is one consumer of a group.
type worker struct {
	redis                   *redis.Client
	stream, group, consumer string
	// idle is how long a message may be with another consumer before this one takes
	// it over.
	idle   time.Duration
	ledger *ledger

	// Where a test kills the process: in the transaction, and between the commit and
	// the acknowledgement. Nil: nowhere.
	booking, booked func()
}

// batch is how many messages are asked for at once, and pause how long a read
// waits for new ones.
const (
	batch = 16
	pause = time.Second
)

// run reads messages until ctx ends or Redis fails.
func (w worker) run(ctx context.Context) error {
	err := w.redis.XGroupCreateMkStream(ctx, w.stream, w.group, "0").Err()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") { // the code is the first word of an error of Redis
		return err
	}
	// First what this consumer had when it died.
	after := "0"
	for ctx.Err() == nil {
		messages, err := w.read(ctx, after)
		if err != nil {
			return err
		}
		for _, m := range messages {
			w.handle(ctx, m)
			if after != ">" {
				after = m.ID
			}
		}
		if len(messages) < batch {
			after = ">"
			if err := w.takeOver(ctx); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (w worker) read(ctx context.Context, after string) ([]redis.XMessage, error) {
	streams, err := w.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: w.group, Consumer: w.consumer, Streams: []string{w.stream, after}, Count: batch, Block: pause,
	}).Result()
	if errors.Is(err, redis.Nil) || err == nil && len(streams) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return streams[0].Messages, nil
}

// takeOver handles messages that have been with a consumer for too long: it died, or
// could not book them.
func (w worker) takeOver(ctx context.Context) error {
	for start := "0"; ; {
		messages, next, err := w.redis.XAutoClaim(ctx, &redis.XAutoClaimArgs{
			Stream: w.stream, Group: w.group, Consumer: w.consumer, MinIdle: w.idle, Start: start, Count: batch,
		}).Result()
		if err != nil {
			return err
		}
		for _, m := range messages {
			w.handle(ctx, m)
		}
		if next == "0-0" {
			return nil
		}
		start = next
	}
}

// handle books one message, and acknowledges it when its outcome is known. Otherwise
// it stays pending and comes again.
func (w worker) handle(ctx context.Context, m redis.XMessage) {
	p, err := parse(m.Values)
	if err != nil {
		w.bury(ctx, m, err)
		return
	}
	res, err := w.ledger.post(ctx, p, hook(w.booking))
	var final *idem.FinalError
	switch {
	case err == nil, errors.As(err, &final): // now, or by the first delivery
		hook(w.booked)()
		slog.Info("booked", "message", m.ID, "again", res.Replayed, "balance", res.Value.Balance)
		w.acknowledge(ctx, m)
	case errors.Is(err, idem.ErrMismatch), errors.Is(err, idem.ErrInvalidKey):
		w.bury(ctx, m, err)
	default: // another worker has it, the database is busy or down, ctx ended
		slog.Warn("not booked", "message", m.ID, "error", err)
	}
}

// bury puts a message aside, for a person to look at, that no repetition can book.
func (w worker) bury(ctx context.Context, m redis.XMessage, why error) {
	slog.Error("cannot be booked", "message", m.ID, "error", why)
	err := w.redis.XAdd(ctx, &redis.XAddArgs{
		Stream: w.stream + ":dead", Values: map[string]any{"id": m.ID, "why": why.Error()},
	}).Err()
	if err == nil {
		w.acknowledge(ctx, m)
	}
}

func (w worker) acknowledge(ctx context.Context, m redis.XMessage) {
	if err := w.redis.XAck(ctx, w.stream, w.group, m.ID).Err(); err != nil {
		slog.Warn("not acknowledged", "message", m.ID, "error", err) // it comes again, and is not booked again
	}
}

func hook(f func()) func() {
	if f == nil {
		return func() {}
	}
	return f
}
