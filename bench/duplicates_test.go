package bench

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/driver/sqlite"
)

const (
	duplicates = 64                   // calls with one key at the same time
	effort     = 5 * time.Millisecond // how long the one that runs takes
	processes  = 4
)

// waiting calls one operation: the first caller of an id runs work, and the others
// wait for its result. Work may be nil.
type waiting func(ctx context.Context, id string, work func()) error

// works are the functions of the ids that are under way, for handlers and
// workers that cannot be handed one.
var works sync.Map

// working makes work what perform does for id, until the function that it returns is called.
func working(id string, work func()) (stop func()) {
	if work == nil {
		return func() {}
	}
	works.Store(id, work)
	return func() { works.Delete(id) }
}

func perform(id string) {
	if work, ok := works.Load(id); ok {
		work.(func())()
	}
}

// operations counts the calls into stores.
var operations atomic.Int64

// counting counts the verbs of a driver.
type counting struct{ driver.Driver }

func (d counting) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	operations.Add(1)
	return d.Driver.Claim(ctx, p)
}

func (d counting) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	operations.Add(1)
	return d.Driver.Get(ctx, p)
}

func (d counting) Renew(ctx context.Context, p driver.RenewParams) error {
	operations.Add(1)
	return d.Driver.Renew(ctx, p)
}

func (d counting) Complete(ctx context.Context, p driver.CompleteParams) error {
	operations.Add(1)
	return d.Driver.Complete(ctx, p)
}

func patient() idem.Config {
	c := config
	c.Wait = 20 * time.Second
	return c
}

func waitingDo(tb testing.TB, d driver.Driver) waiting {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](counting{d}, patient()))
	return func(ctx context.Context, id string, work func()) error {
		res, err := op.Do(ctx, key(id), print(), func(context.Context, *idem.Run) ([]byte, error) {
			if work != nil {
				work()
			}
			return result, nil
		})
		return had(res.Value, err)
	}
}

func waitingTx[T any](tb testing.TB, d driver.TxDriver[T], insert func(ctx context.Context, tx T, id string) error) waiting {
	op := must[*idem.TxOperation[[]byte, T]](tb)(idem.NewTx[[]byte](d, patient()))
	return func(ctx context.Context, id string, work func()) error {
		res, err := op.DoTx(ctx, key(id), print(), func(ctx context.Context, tx T) ([]byte, error) {
			if work != nil {
				work()
			}
			return result, insert(ctx, tx, id)
		})
		return had(res.Value, err)
	}
}

func pgPool(tb testing.TB, dsn string) *pgxpool.Pool {
	c := must[*pgxpool.Config](tb)(pgxpool.ParseConfig(dsn))
	c.MaxConns = 16
	pool := must[*pgxpool.Pool](tb)(pgxpool.NewWithConfig(tb.Context(), c))
	tb.Cleanup(pool.Close)
	return pool
}

func redisClient(tb testing.TB, addr string) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: 80})
	tb.Cleanup(func() { c.Close() })
	return c
}

func liteFile(tb testing.TB, path string) *sqlite.Driver {
	d := must[*sqlite.Driver](tb)(sqlite.Open(path))
	tb.Cleanup(func() { d.Close() })
	return d
}

// openers make what is waited for, by kind; where names the store.
var openers = map[string]func(tb testing.TB, where string) waiting{
	"memory":   func(tb testing.TB, _ string) waiting { return waitingDo(tb, memory.New()) },
	"postgres": func(tb testing.TB, dsn string) waiting { return waitingDo(tb, postgres.New(pgPool(tb, dsn))) },
	"postgres-tx": func(tb testing.TB, dsn string) waiting {
		return waitingTx(tb, postgres.New(pgPool(tb, dsn)), func(ctx context.Context, tx pgx.Tx, id string) error {
			_, err := tx.Exec(ctx, pgBusiness, id)
			return err
		})
	},
	"redis":  func(tb testing.TB, addr string) waiting { return waitingDo(tb, redis.New(redisClient(tb, addr))) },
	"sqlite": func(tb testing.TB, path string) waiting { return waitingDo(tb, liteFile(tb, path)) },
	"sqlite-tx": func(tb testing.TB, path string) waiting {
		return waitingTx(tb, liteFile(tb, path), func(ctx context.Context, tx *sql.Tx, id string) error {
			_, err := tx.ExecContext(ctx, liteBusiness, id)
			return err
		})
	},
	"bolt": func(tb testing.TB, path string) waiting {
		d := must[*bolt.Driver](tb)(bolt.Open(path))
		tb.Cleanup(func() { d.Close() })
		return waitingTx(tb, d, func(_ context.Context, tx *bbolt.Tx, id string) error {
			b, err := tx.CreateBucketIfNotExists([]byte("business"))
			if err != nil {
				return err
			}
			return b.Put([]byte(id), body)
		})
	},
}

// burst is what became of the calls with one key.
type burst struct {
	runs       int64
	operations int64
	ended      int64 // when the run ended, in Unix nanoseconds; 0 when it was elsewhere
	last       int64 // when the last caller was answered
}

// together calls w that many times at once with one id.
func together(ctx context.Context, w waiting, id string, callers int) (b burst, err error) {
	var runs, ended atomic.Int64
	var failed atomic.Pointer[error]
	work := func() {
		runs.Add(1)
		time.Sleep(effort)
		ended.Store(time.Now().UnixNano())
	}
	before := operations.Load()
	start := make(chan struct{})
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			<-start
			if err := w(ctx, id, work); err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	close(start)
	all.Wait()
	if p := failed.Load(); p != nil {
		err = *p
	}
	return burst{runs.Load(), operations.Load() - before, ended.Load(), time.Now().UnixNano()}, err
}

// crowd is a way of being called by many at once.
type crowd struct {
	name    string
	ours    bool // one run a key is promised
	counted bool
	call    func(ctx context.Context, id string) (burst, error)
	after   []float64 // milliseconds from the end of the run to the last answer
	runs    int64     // at most, for one key
	ops     []float64
}

func here(tb testing.TB, name, kind, where string) *crowd {
	w := openers[kind](tb, where)
	ours := strings.HasPrefix(name, "idem")
	return &crowd{name: name, ours: ours, counted: ours && !strings.HasSuffix(kind, "-tx") && kind != "bolt", call: func(ctx context.Context, id string) (burst, error) {
		return together(ctx, w, id, duplicates)
	}}
}

func (c *crowd) measure(tb testing.TB) {
	tb.Helper()
	b, err := c.call(tb.Context(), newID())
	if err != nil {
		tb.Fatalf("%d duplicates: %s: %v", duplicates, c.name, err)
	}
	if c.ours && b.runs != 1 {
		tb.Errorf("%d duplicates: %s: the operation ran %d times", duplicates, c.name, b.runs)
	}
	c.runs = max(c.runs, b.runs)
	c.ops = append(c.ops, float64(b.operations))
	c.after = append(c.after, float64(b.last-b.ended)/1e6)
}

// crowdText returns the table of some crowds in Markdown.
func crowdText(title string, all []*crowd) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n| | ms to the last answer | 90 %% within | runs | calls to the store |\n| --- | ---: | ---: | ---: | ---: |\n", title)
	for _, c := range all {
		ops := count(unknown)
		if c.counted {
			ops = fmt.Sprintf("%.0f", quantile(c.ops, 0.5))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s |\n", c.name, number(quantile(c.after, 0.5)), number(quantile(c.after, 0.9)), c.runs, ops)
	}
	b.WriteByte('\n')
	return b.String()
}
