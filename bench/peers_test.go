package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/gofiber/fiber/v3"
	fiberidem "github.com/gofiber/fiber/v3/middleware/idempotency"
	fiberredis "github.com/gofiber/storage/redis/v3"
	goredis "github.com/redis/go-redis/v9"
	"github.com/valyala/fasthttp"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/idemhttp"
)

func init() {
	openers["idemhttp-memory"] = func(tb testing.TB, _ string) waiting { return guarded(tb, memory.New()) }
	openers["idemhttp-redis"] = func(tb testing.TB, addr string) waiting { return guarded(tb, redis.New(redisClient(tb, addr))) }
	openers["fiber-memory"] = func(testing.TB, string) waiting { return fiberApp(nil) }
	openers["fiber-redis"] = openFiberRedis
	openers["redislock"] = func(tb testing.TB, addr string) waiting { return locked(redisClient(tb, addr)) }
	openers["dbos"] = func(tb testing.TB, dsn string) waiting { return openDBOS(tb, dsn).workflow(0) }
	openers["dbos-5ms"] = func(tb testing.TB, dsn string) waiting { return openDBOS(tb, dsn).workflow(dbosPoll) }
	openers["dbos-tx"] = func(tb testing.TB, dsn string) waiting { return openDBOS(tb, dsn).transaction(0) }
	openers["dbos-tx-5ms"] = func(tb testing.TB, dsn string) waiting { return openDBOS(tb, dsn).transaction(dbosPoll) }
}

// guarded is an endpoint behind idemhttp, called without a network.
func guarded(tb testing.TB, d driver.Driver) waiting {
	g := must[*idemhttp.Guard](tb)(idemhttp.New(d, idemhttp.Config{
		Operation: idem.Config{Name: "bench.order", Retention: time.Hour}, Scope: idemhttp.Global,
		InFlight: idemhttp.Wait, MaxWait: 20 * time.Second,
	}))
	h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		perform(r.Header.Get(idemhttp.DefaultHeader))
		w.Write(result)
	}))
	return func(ctx context.Context, id string, work func()) error {
		defer working(id, work)()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/orders", bytes.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set(idemhttp.DefaultHeader, id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			return fmt.Errorf("status %d: %s", w.Code, w.Body)
		}
		return had(w.Body.Bytes(), nil)
	}
}

// fiberApp is an endpoint behind Fiber's middleware, called without a network. A nil
// store is the middleware's own, in memory.
func fiberApp(store fiber.Storage) waiting {
	app := fiber.New()
	app.Use(fiberidem.New(fiberidem.Config{Storage: store, Lifetime: time.Hour, KeyHeaderValidate: func(string) error { return nil }}))
	app.Post("/orders", func(c fiber.Ctx) error {
		perform(c.Get("X-Idempotency-Key"))
		return c.Send(result)
	})
	h := app.Handler()
	return func(_ context.Context, id string, work func()) error {
		defer working(id, work)()
		var c fasthttp.RequestCtx
		c.Request.Header.SetMethod(fasthttp.MethodPost)
		c.Request.SetRequestURI("/orders")
		c.Request.Header.Set("X-Idempotency-Key", id)
		c.Request.SetBody(body)
		h(&c)
		if c.Response.StatusCode() != http.StatusOK {
			return fmt.Errorf("status %d: %s", c.Response.StatusCode(), c.Response.Body())
		}
		return had(c.Response.Body(), nil)
	}
}

func openFiberRedis(tb testing.TB, addr string) waiting {
	host, text, _ := net.SplitHostPort(addr)
	port := must[int](tb)(strconv.Atoi(text))
	s := fiberredis.New(fiberredis.Config{Host: host, Port: port, PoolSize: 80})
	tb.Cleanup(func() { s.Close() })
	return fiberApp(s)
}

// locked is the pattern that users of redislock write: look for a result, lock, look
// again, run, store, unlock.
func locked(c *goredis.Client) waiting {
	locker := redislock.New(c)
	return func(ctx context.Context, id string, work func()) error {
		stored, lock := "result:"+id, "lock:"+id
		look := func() ([]byte, error) { return c.Get(ctx, stored).Bytes() }
		if value, err := look(); !errors.Is(err, goredis.Nil) {
			return had(value, err)
		}
		l, err := locker.Obtain(ctx, lock, 30*time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)})
		if err != nil {
			return err
		}
		defer l.Release(ctx)
		if value, err := look(); !errors.Is(err, goredis.Nil) {
			return had(value, err)
		}
		if work != nil {
			work()
		}
		return c.Set(ctx, stored, result, time.Hour).Err()
	}
}

// dbosPoll is how often a caller looks for a result, instead of once a second.
const dbosPoll = 5 * time.Millisecond

type dbosApp struct{ ctx dbos.Context }

// One application is launched for a database, and its transactions run on its pool.
var (
	dbosApps = make(map[string]dbosApp)
	dbosData *dbos.DataSource
)

// dbosPlain is a workflow without a step.
func dbosPlain(_ dbos.Context, id string) ([]byte, error) {
	perform(id)
	return result, nil
}

// dbosInTx is a workflow of one transaction, whose step and row commit together.
func dbosInTx(ctx dbos.Context, id string) ([]byte, error) {
	return dbos.RunAsTransaction(ctx, dbosData, func(c context.Context, tx dbos.Tx) ([]byte, error) {
		perform(id)
		_, err := tx.Exec(c, pgBusiness, id)
		return result, err
	})
}

func openDBOS(tb testing.TB, dsn string) dbosApp {
	if a, ok := dbosApps[dsn]; ok {
		return a
	}
	pool := pgPool(tb, dsn)
	ctx := must[dbos.Context](tb)(dbos.NewContext(context.Background(), dbos.Config{
		AppName: "bench", SystemDBPool: pool, ApplicationVersion: "v1", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}))
	dbos.RegisterWorkflow(ctx, dbosPlain)
	dbos.RegisterWorkflow(ctx, dbosInTx)
	dbosData = must[*dbos.DataSource](tb)(dbos.NewDataSource(ctx, pool))
	if err := dbos.Launch(ctx); err != nil {
		tb.Fatal(err)
	}
	dbosApps[dsn] = dbosApp{ctx}
	tb.Cleanup(func() {
		_ = dbos.Shutdown(ctx, 5*time.Second)
		delete(dbosApps, dsn)
	})
	return dbosApps[dsn]
}

func (a dbosApp) workflow(poll time.Duration) waiting    { return a.run(dbosPlain, poll) }
func (a dbosApp) transaction(poll time.Duration) waiting { return a.run(dbosInTx, poll) }

func (a dbosApp) run(w dbos.Workflow[string, []byte], poll time.Duration) waiting {
	return func(_ context.Context, id string, work func()) error {
		defer working(id, work)()
		h, err := dbos.RunWorkflow(a.ctx, w, id, dbos.WithWorkflowID(id))
		if err != nil {
			return err
		}
		if poll == 0 {
			return had(h.GetResult())
		}
		return had(h.GetResult(dbos.WithHandlePollingInterval(poll)))
	}
}
