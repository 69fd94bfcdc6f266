package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
)

// The statuses of reply.lua.
const (
	statusOK        = 1
	statusNotHolder = 2
	statusRefused   = 3
)

// answer is the reply of a script.
type answer struct {
	status int64
	now    time.Time
	record string // as encoded; empty when there is none, or none was asked for
}

// call runs the script of one verb. It returns [driver.ErrNotHolder] when the
// script says so.
func (d *Driver) call(ctx context.Context, s *goredis.Script, h driver.KeyHash, now time.Time, args ...any) (answer, error) {
	if err := ctx.Err(); err != nil {
		return answer{}, err
	}
	if err := d.ensureChecked(ctx); err != nil {
		return answer{}, err
	}
	tag := newTag(h)
	args = append([]any{tag, micros(now)}, args...)
	v, err := await(ctx, func() (any, error) {
		// Run sends EVALSHA, and EVAL when the server does not know the script.
		return s.Run(ctx, d.client, []string{d.name(h)}, args...).Result()
	})
	if err != nil {
		return answer{}, err
	}
	a, err := parse(v, tag)
	if err != nil {
		return answer{}, err
	}
	switch a.status {
	case statusOK:
		return a, nil
	case statusNotHolder:
		return answer{}, driver.ErrNotHolder
	}
	return answer{}, refused(a.record, h)
}

// refused says what stands under the key of h instead of a record of this version.
func refused(head string, h driver.KeyHash) error {
	if _, err := decode(head, h); err != nil {
		return err
	}
	return fmt.Errorf("%w: the script could not read it", driver.ErrForeignRecord)
}

// mark is what a stored value begins with; see record.lua.
const mark = "idem"

// decode reads a stored value, or as much of one as holds everything but its result.
func decode(value string, h driver.KeyHash) (driver.Record, error) {
	record, ok := strings.CutPrefix(value, mark)
	if !ok {
		return driver.Record{}, fmt.Errorf("%w: another application's data stand under it", driver.ErrForeignRecord)
	}
	return driver.DecodeRecord([]byte(record), h)
}

func (d *Driver) hash(k driver.Key) driver.KeyHash { return k.Hash(d.namespace, d.secret) }

// name returns the key of a record in Redis. Only the hash is in braces, so a
// record's slot depends on nothing else.
func (d *Driver) name(h driver.KeyHash) string { return d.prefix + "{" + h.String() + "}" }

// newTag names one call: see reply.lua. A command that the client sends again
// carries the same tag, and either reply answers it.
func newTag(h driver.KeyHash) string {
	var tag [len(h) + 8]byte
	copy(tag[:], h[:])
	binary.BigEndian.PutUint64(tag[len(h):], rand.Uint64())
	return string(tag[:])
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func parse(v any, tag string) (answer, error) {
	fields, ok := v.([]any)
	if !ok || len(fields) != 4 {
		return answer{}, fmt.Errorf("%w: the reply belongs to another command", driver.ErrForeignRecord)
	}
	got, okTag := fields[0].(string)
	status, okStatus := fields[1].(int64)
	now, okNow := fields[2].(int64)
	record, okRecord := fields[3].(string)
	if !okTag || !okStatus || !okNow || !okRecord || got != tag {
		return answer{}, fmt.Errorf("%w: the reply belongs to another command", driver.ErrForeignRecord)
	}
	return answer{status: status, now: time.UnixMicro(now).UTC(), record: record}, nil
}

// await runs f and returns what it returns, or as soon as ctx ends: the client
// observes a deadline, but not a cancellation while it waits for a reply. f keeps
// nothing of its caller's: it may still run when await has returned.
func await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		v, err := f()
		return v, translate(ctx, err)
	}
	type result struct {
		v   T
		err error
	}
	ch := make(chan result, 1)
	go func() {
		growStack()
		v, err := f()
		ch <- result{v, err}
	}()
	select {
	case r := <-ch:
		return r.v, translate(ctx, r.err)
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// growStack gives a new goroutine the stack that the client needs, while there is
// nothing on it: growing it by and by, each time under what is there already,
// takes as long as the rest of a call.
//
//go:noinline
func growStack() {
	var room [6 << 10]byte
	use(room[:])
}

//go:noinline
func use([]byte) {}

// translate says in the terms of package driver what the client reported. What
// remains is a store failure: READONLY, LOADING, CLUSTERDOWN, OOM, a broken
// connection.
func translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The client sets the context's deadline on the connection, which may notice
	// it just before the context does.
	var timeout net.Error
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) &&
		errors.As(err, &timeout) && timeout.Timeout() {
		return context.DeadlineExceeded
	}
	if goredis.HasErrorPrefix(err, "WRONGTYPE") {
		return fmt.Errorf("%w: %w", driver.ErrForeignRecord, err)
	}
	return err
}
