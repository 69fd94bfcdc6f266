package redis

import (
	"context"
	"errors"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
)

// replay returns the record of a key that is taken to have an outcome, and whether
// it has one: then it is what the claim script would answer. It is read without a
// script, which takes a server less time. When the guess is wrong, the claim costs
// a round trip more.
//
// A client of a Cluster would send what has no key to any node, so its claims are
// scripts always.
func (d *Driver) replay(ctx context.Context, h driver.KeyHash, p driver.ClaimParams) (driver.Record, bool, error) {
	if d.single == nil || !d.finished.Has(h) {
		return driver.Record{}, false, nil
	}
	if err := ctx.Err(); err != nil {
		return driver.Record{}, false, err
	}
	now, name, tag := driver.Micro(p.Now), d.name(h), newTag(h)
	a, err := await(ctx, func() (answer, error) { return look(ctx, d.single, name, tag, now) })
	if err != nil {
		return driver.Record{}, false, err
	}
	r, err := a.decode(h, p.Key)
	if err != nil || r.StateAt(r.Now) != driver.StateComplete {
		d.finished.Remove(h)
		return driver.Record{}, false, nil
	}
	return r, true, nil
}

// look reads the value under name, and the clock unless now is given. The answer is
// zero when the server has replied with anything else.
//
// The tag stands before the others, as it does in the reply of a script: replies
// come in the order of the commands, so that those after the tag's are of this
// call, whatever a call before has left in the connection. The record's hash alone
// would let an earlier reply for the same key pass. The clock is read after the
// record, so that a record that has not ended by then had not ended when it was read.
//
// A pipeline is never answered from the client's cache, and a GET may be.
func look(ctx context.Context, c *goredis.Client, name, tag string, now time.Time) (answer, error) {
	pipe := c.Pipeline()
	echo := pipe.Do(ctx, "echo", tag)
	get := pipe.Do(ctx, "get", name)
	var clock *goredis.Cmd
	if now.IsZero() {
		clock = pipe.Do(ctx, "time")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		// What is no reply would be the script's error, too.
		var reply goredis.Error
		if !errors.As(err, &reply) {
			return answer{}, err
		}
		return answer{}, nil
	}
	got, _ := echo.Val().(string)
	record, _ := get.Val().(string)
	if clock != nil {
		now = instant(clock.Val())
	}
	if got != tag || now.IsZero() {
		return answer{}, nil
	}
	return answer{status: statusOK, now: now, record: record}, nil
}

// instant reads a reply of TIME. It is zero when it is no such reply.
func instant(v any) time.Time {
	parts, _ := v.([]any)
	if len(parts) != 2 {
		return time.Time{}
	}
	seconds, _ := parts[0].(string)
	fraction, _ := parts[1].(string)
	s, err := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(fraction, 10, 64)
	if err != nil || err2 != nil {
		return time.Time{}
	}
	return time.UnixMicro(s*1e6 + us).UTC()
}
