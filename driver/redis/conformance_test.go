package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/internal/redistest"
)

var prefixes atomic.Int64

// uniquePrefix keeps tests apart that share a server, also one that others use.
func uniquePrefix() redis.Option {
	return redis.WithPrefix(fmt.Sprintf("idemtest:%s:%d:", driver.NewToken(), prefixes.Add(1)))
}

// store is a harness over clients that connect makes.
func store(config string, connect func(testing.TB) goredis.UniversalClient, opts ...redis.Option) conformancetest.Harness {
	opts = append(opts, uniquePrefix())
	open := func(t testing.TB) driver.Driver { return redis.New(connect(t), opts...) }
	return conformancetest.Harness{
		Config: config,
		New:    open,
		Second: func(t testing.TB, _ driver.Driver) driver.Driver { return open(t) },
		Reopen: func(t testing.TB, _ driver.Driver) driver.Driver { return open(t) },
	}
}

func TestConformanceSingle(t *testing.T) {
	addr := redistest.Addr(t)
	for _, protocol := range []int{3, 2} {
		name := fmt.Sprintf("resp%d", protocol)
		t.Run(name, func(t *testing.T) {
			conformancetest.Run(t, store(name, func(t testing.TB) goredis.UniversalClient {
				return redistest.Client(t, addr, func(o *goredis.Options) { o.Protocol = protocol })
			}))
		})
	}
}

func TestConformanceSecret(t *testing.T) {
	addr := redistest.Addr(t)
	conformancetest.Run(t, store("secret", func(t testing.TB) goredis.UniversalClient {
		return redistest.Client(t, addr)
	}, redis.WithSecret([]byte("a secret")), redis.WithNamespace("conformance")))
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	conformancetest.Run(t, store("cluster", func(t testing.TB) goredis.UniversalClient { return c.Client(t) }))
}

// With the append-only file synced always, a store survives the death of the server.
func TestConformanceAppendOnly(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	h := store("aof", func(t testing.TB) goredis.UniversalClient { return s.Client(t) })
	reconnect := h.Reopen
	h.Reopen = func(t testing.TB, d driver.Driver) driver.Driver {
		s.Restart(t)
		return reconnect(t, d)
	}
	conformancetest.Run(t, h)
}
