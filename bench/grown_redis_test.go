package bench

import (
	"context"
	"regexp"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/redistest"
)

// growRedis gives every store a server of its own, whose memory is then the store's.
func growRedis(tb testing.TB, n int) *grown {
	s := redistest.Start(tb)
	c := redistest.Client(tb, s.Addr)
	load := redistest.Client(tb, s.Addr, func(o *goredis.Options) { o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute })
	d := redis.New(c)
	empty := info(tb, c, "memory", "used_memory")
	seedRecord(tb, d)
	keys := must[[]string](tb)(c.Keys(tb.Context(), "*").Result())
	if len(keys) != 1 {
		tb.Fatalf("a record is %d keys, and only one can be multiplied", len(keys))
	}
	name, value := newMould([]byte(keys[0])), newMould(must[[]byte](tb)(c.Get(tb.Context(), keys[0]).Bytes()))
	left := must[time.Duration](tb)(c.PTTL(tb.Context(), keys[0]).Result())
	put := func(from, to int, ttl func(i int) time.Duration) {
		const pipeline = 20_000
		for ; from < to; from += pipeline {
			if _, err := load.Pipelined(tb.Context(), func(p goredis.Pipeliner) error {
				for i := from; i < min(from+pipeline, to); i++ {
					h := grownHash(i)
					p.Set(tb.Context(), string(name.cast(i, h)), value.cast(i, h), ttl(i))
				}
				return nil
			}); err != nil {
				tb.Fatal(err)
			}
		}
	}
	put(1, n, func(int) time.Duration { return left })
	next := n
	return &grown{
		n: n, drv: d, parts: []part{{"memory", int64(info(tb, c, "memory", "used_memory") - empty)}},
		expiring: func(tb testing.TB, count int, over time.Duration) {
			from := next
			next += count
			end := time.Now().Add(over)
			put(from, next, func(i int) time.Duration {
				return max(time.Millisecond, time.Until(end.Add(-over*time.Duration(next-i)/time.Duration(count))))
			})
		},
		expired: func(tb testing.TB) int { return info(tb, c, "stats", "expired_keys") },
	}
}

// info returns a number that the server tells of itself.
func info(tb testing.TB, c *goredis.Client, section, field string) int {
	tb.Helper()
	text := must[string](tb)(c.Info(context.WithoutCancel(tb.Context()), section).Result())
	m := regexp.MustCompile(`(?m)^` + field + `:(\d+)`).FindStringSubmatch(text)
	if m == nil {
		tb.Fatalf("INFO %s has no %s", section, field)
	}
	return must[int](tb)(strconv.Atoi(m[1]))
}
