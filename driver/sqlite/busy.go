package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"modernc.org/sqlite"

	"github.com/idem-go/idem/driver"
)

// Primary result codes of SQLite; see https://sqlite.org/rescode.html.
const (
	codeBusy      = 5 // 5, 261 (recovery), 517 (snapshot), 773 (timeout)
	codeInterrupt = 9
	codeIOErr     = 10
)

// code returns the primary result code of an error of SQLite, or 0.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// Retryable implements [driver.Retrier]: err is SQLITE_BUSY, of whatever kind. A
// transaction that idem opened has the write lock, so that its statements do not meet
// it; those of another database that is attached may.
func (d *Driver) Retryable(err error) bool { return code(err) == codeBusy }

// bounded returns ctx limited to the busy timeout.
func (d *Driver) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.busyTimeout)
}

// patient returns ctx limited for what is done once, at the start: a busy timeout that is
// short, to fail fast later, shall not fail it.
func (d *Driver) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(d.busyTimeout, DefaultBusyTimeout))
}

// retry runs fn again while it fails because somebody else has the database
// locked, with growing pauses, until limit ends. The pauses are random, so that
// processes that collided once do not collide for ever.
func retry(limit context.Context, fn func() error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 25*time.Millisecond) {
		err := fn()
		if code(err) != codeBusy {
			return err
		}
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-limit.Done():
			t.Stop()
			return err
		}
	}
}

// translate gives an error its kind. ctx is the caller's, and limit what
// [Driver.bounded] made of it.
func (d *Driver) translate(ctx, limit context.Context, err error) error {
	if err == nil || errors.Is(err, driver.ErrOutcomeUnknown) {
		return err
	}
	busy := code(err) == codeBusy
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || code(err) == codeInterrupt
	switch {
	case (busy || ended) && ctx.Err() != nil:
		return ctx.Err()
	case busy:
		return fmt.Errorf("sqlite: %w: %w", driver.ErrRetryable, err)
	case ended && limit.Err() != nil:
		return fmt.Errorf("sqlite: %w: the writer was busy for %v", driver.ErrRetryable, d.busyTimeout)
	}
	return err
}
