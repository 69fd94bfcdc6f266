package bench

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/redistest"
)

const (
	bareSet = "SET NX, SET"
	bareGet = "GET of a stored result"
)

type redisBuilder func(testing.TB, *goredis.Client) []subject

func redisFirst(tb testing.TB, c *goredis.Client) []subject {
	return []subject{
		{name: bareSet, call: func(ctx context.Context, id string) error {
			// What go-redis answers to a SET NX that did not set is an error.
			if err := c.SetArgs(ctx, "bare:"+id, "", goredis.SetArgs{Mode: "NX", TTL: time.Hour}).Err(); err != nil {
				return err
			}
			return c.Set(ctx, "bare:"+id, result, time.Hour).Err()
		}},
		doing(tb, do, redis.New(c)),
	}
}

func redisReplay(tb testing.TB, c *goredis.Client) []subject {
	return []subject{
		replaying(bareGet, known(tb, redisFirst(tb, c)[0].call), func(ctx context.Context, id string) error {
			value, err := c.Get(ctx, "bare:"+id).Bytes()
			return had(value, err)
		}),
		redoing(tb, redis.New(c)),
	}
}

// redisCost counts the round trips of one call of every subject.
func redisCost(tb testing.TB, s *redistest.Server, build redisBuilder) []*cost {
	const calls = 100
	px := slowLine(tb, s.Addr, 0)
	var costs []*cost
	for _, sub := range build(tb, redistest.Client(tb, px.Addr())) {
		for range 3 {
			if err := sub.call(tb.Context(), newID()); err != nil {
				tb.Fatalf("%s: %v", sub.name, err)
			}
		}
		trips := px.Trips()
		for range calls {
			if err := sub.call(tb.Context(), newID()); err != nil {
				tb.Fatalf("%s: %v", sub.name, err)
			}
		}
		costs = append(costs, &cost{float64(px.Trips()-trips) / calls, unknown})
	}
	return costs
}

func redisTables(tb testing.TB) []*table {
	s := redistest.Start(tb)
	px := slowLine(tb, s.Addr, rtt)
	var all []*table
	for _, b := range []struct {
		id, title string
		build     redisBuilder
	}{{"redis-first", "Redis, first run", redisFirst}, {"redis-replay", "Redis, replay", redisReplay}} {
		costs := redisCost(tb, s, b.build)
		near, far := redistest.Client(tb, s.Addr), redistest.Client(tb, px.Addr())
		tables := []*table{
			{id: b.id, title: b.title + ", one caller", callers: 1, subjects: b.build(tb, near)},
			{id: b.id + "-16", title: b.title + ", 16 callers", callers: 16, subjects: b.build(tb, near)},
			{id: b.id + "-rtt", title: b.title + ", one caller, 1 ms of round-trip time added", callers: 1, subjects: b.build(tb, far)},
		}
		for _, t := range tables {
			for i := range costs {
				t.subjects[i].cost = costs[i]
			}
		}
		all = append(all, tables...)
	}
	return all
}
