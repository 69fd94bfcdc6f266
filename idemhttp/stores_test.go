package idemhttp_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/redistest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// store is a real store under the contract. The others are nil without transactions.
type store struct {
	drv   driver.Driver
	guard func(idemhttp.Config) (*idemhttp.Guard, error)
	write func(context.Context) error
	count func() (int, error)
	fail  func(context.Context) error // a statement that fails; nil where none can
	// aborts says that after it nothing can be committed.
	aborts bool
}

var stores = map[string]func(*testing.T) store{
	"memory": func(*testing.T) store { return store{drv: memory.New()} },
	"sqlite": func(t *testing.T) store {
		d := openSQLite(t)
		return store{
			drv:   d,
			guard: func(c idemhttp.Config) (*idemhttp.Guard, error) { return idemhttp.NewTx(d, c) },
			write: func(ctx context.Context) error { return insert(idemhttp.Tx[*sql.Tx](ctx), "row") },
			count: func() (n int, err error) {
				return n, d.DB().QueryRow("SELECT count(*) FROM orders").Scan(&n)
			},
			fail: func(ctx context.Context) error {
				_, err := idemhttp.Tx[*sql.Tx](ctx).Exec("INSERT INTO nowhere VALUES (1)")
				return err
			},
		}
	},
	"bolt": func(t *testing.T) store {
		d, err := bolt.Open(filepath.Join(t.TempDir(), "idem.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close(); d.DB().Close() })
		return store{
			drv:   d,
			guard: func(c idemhttp.Config) (*idemhttp.Guard, error) { return idemhttp.NewTx(d, c) },
			write: func(ctx context.Context) error {
				b, err := idemhttp.Tx[*bbolt.Tx](ctx).CreateBucketIfNotExists([]byte("orders"))
				if err != nil {
					return err
				}
				n, err := b.NextSequence()
				if err != nil {
					return err
				}
				return b.Put(fmt.Append(nil, n), []byte("row"))
			},
			count: func() (n int, err error) {
				return n, d.DB().View(func(tx *bbolt.Tx) error {
					if b := tx.Bucket([]byte("orders")); b != nil {
						n = b.Stats().KeyN
					}
					return nil
				})
			},
		}
	},
	"postgres": func(t *testing.T) store {
		pool := pgtest.Pool(t)
		d := postgres.New(pool)
		if err := d.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), "CREATE TABLE orders (name text)"); err != nil {
			t.Fatal(err)
		}
		return store{
			drv:   d,
			guard: func(c idemhttp.Config) (*idemhttp.Guard, error) { return idemhttp.NewTx(d, c) },
			write: func(ctx context.Context) error {
				_, err := idemhttp.Tx[pgx.Tx](ctx).Exec(ctx, "INSERT INTO orders VALUES ('row')")
				return err
			},
			count: func() (n int, err error) {
				return n, pool.QueryRow(t.Context(), "SELECT count(*) FROM orders").Scan(&n)
			},
			fail: func(ctx context.Context) error {
				_, err := idemhttp.Tx[pgx.Tx](ctx).Exec(ctx, "INSERT INTO nowhere VALUES (1)")
				return err
			},
			aborts: true,
		}
	},
	"redis": func(t *testing.T) store {
		prefix := redis.WithPrefix("idemhttp:" + driver.NewToken().String() + ":")
		return store{drv: redis.New(redistest.Client(t, redistest.Addr(t)), prefix)}
	},
}

// The heart of the contract holds on every store.
func TestStores(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Run("lease", func(t *testing.T) {
				s := open(t)
				testStore(t, func(c idemhttp.Config) (*idemhttp.Guard, error) { return idemhttp.New(s.drv, c) })
			})
			t.Run("hold", func(t *testing.T) { testHold(t, open(t).drv) })
			if s := open(t); s.guard != nil {
				t.Run("transaction", func(t *testing.T) { testStore(t, s.guard) })
				t.Run("rows", func(t *testing.T) { testRows(t, open(t)) })
				t.Run("failed statement", func(t *testing.T) { testFailedStatement(t, open(t)) })
			}
		})
	}
}

func (e *env) with(guard func(idemhttp.Config) (*idemhttp.Guard, error), h http.HandlerFunc, change ...func(*idemhttp.Config)) *env {
	e.t.Helper()
	c := config(change...)
	c.Logger = slog.New(slog.NewTextHandler(&e.log, nil))
	g, err := guard(c)
	if err != nil {
		e.t.Fatal(err)
	}
	return e.start(g, h, nil)
}

func testStore(t *testing.T, guard func(idemhttp.Config) (*idemhttp.Guard, error)) {
	g := newGate()
	e := (&env{t: t}).with(guard, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Link"] = []string{"</a>", "</b>"}
		w.Header().Set("Location", "/orders/1")
		switch r.URL.Path {
		case "/slow":
			g.entered <- struct{}{}
			<-g.leave
			w.WriteHeader(201)
		case "/large":
			w.Write(make([]byte, limit+1))
			return
		case "/503":
			w.WriteHeader(503)
			return
		case "/400":
			w.WriteHeader(400)
		default:
			w.WriteHeader(201)
		}
		w.Write([]byte("\x00made\xff"))
	}, limits)
	for p, status := range map[string]int{"/201": 201, "/400": 400} {
		first, again := e.wire2(p), e.wire2(p)
		if !strings.Contains(first, fmt.Sprint(" ", status, " ")) || comparable(first) != comparable(again) || !strings.Contains(again, "Idempotent-Replayed: true") {
			t.Errorf("first %q, replay %q", first, again)
		}
		e.post("tab", "b", path("/503")) // gives its key up
	}
	e.wantRuns(4)
	e.post("/201", "other", path("/201")).wantProblem(t, 422, idemhttp.CodeConflict)
	e.post("large", "b", path("/large")).want(t, 200, string(make([]byte, limit+1)), false)
	e.post("large", "b", path("/large")).wantProblem(t, 409, idemhttp.CodeNotStored)
	e.wantRuns(5)

	first := e.async("slow", "b", path("/slow"))
	receive(t, g.entered, "the handler")
	e.post("slow", "b", path("/slow")).wantProblem(t, 409, idemhttp.CodeInFlight)
	e.post("slow", "b", path("/slow"), header("Prefer", "respond-async")).wantProblem(t, 202, idemhttp.CodeInFlight)
	var repeats []<-chan answer
	for range 4 {
		repeats = append(repeats, e.async("slow", "b", path("/slow"), header("Prefer", "wait=10")))
	}
	close(g.leave)
	receive(t, first, "the first").want(t, 201, "\x00made\xff", false)
	for _, ch := range repeats {
		receive(t, ch, "a repeat").want(t, 201, "\x00made\xff", true)
	}
	e.wantRuns(6)
}

// wire2 is wire on a path that is also the key.
func (e *env) wire2(p string) string {
	return e.raw("POST "+p+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\nIdempotency-Key: "+p+"\r\nContent-Length: 1\r\n\r\nb", false)
}

func testHold(t *testing.T, drv driver.Driver) {
	e := serve(t, drv, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, func(c *idemhttp.Config) {
		c.Operation.Policy, c.Operation.Lease = idem.Hold, 10*time.Second
	})
	<-e.async("k", "b")
	e.post("k", "b").wantProblem(t, 409, idemhttp.CodeUnknown)
	e.wantRuns(1)
	answer := idemhttp.Response{Status: 204}
	if err := e.guard.Operation().Resolve(t.Context(), idem.Key{Scope: "tenant-", ID: "k"}, "looked into", answer, nil); err != nil {
		t.Fatal(err)
	}
	e.post("k", "b").want(t, 204, "", true)
}

func testRows(t *testing.T, s store) {
	e := (&env{t: t}).with(s.guard, func(w http.ResponseWriter, r *http.Request) {
		if err := s.write(r.Context()); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
		status(w, r)
	})
	rows := 0
	for _, tt := range []struct {
		path   string
		rows   int
		stored bool
	}{
		{"/201", 1, true}, {"/400", 0, true}, {"/500", 0, true}, {"/503", 0, false}, {"/panic", 0, false},
	} {
		for i := range 2 {
			a := <-e.async(tt.path, "b", path(tt.path))
			if (a.err == nil) != (tt.path != "/panic") || a.replayed() != (tt.stored && i == 1) {
				t.Errorf("%s, request %d: %+v", tt.path, i, a)
			}
		}
		rows += tt.rows
		if n, err := s.count(); err != nil || n != rows {
			t.Errorf("after %s the store holds %d rows, %v; want %d", tt.path, n, err, rows)
		}
	}
}

// A handler whose statement has failed can say so, and its answer is stored; it
// cannot claim a success that the store would not commit.
func testFailedStatement(t *testing.T, s store) {
	if s.fail == nil {
		return
	}
	e := (&env{t: t}).with(s.guard, func(w http.ResponseWriter, r *http.Request) {
		if err := s.write(r.Context()); err != nil {
			t.Error(err)
		}
		if err := s.fail(r.Context()); err == nil {
			t.Error("the statement did not fail")
		}
		status(w, r)
	})
	e.post("a", "b", path("/409")).want(t, 409, "ran", false)
	e.post("a", "b", path("/409")).want(t, 409, "ran", true)
	e.wantRuns(1)
	rows := 1
	if a := e.post("b", "b", path("/201")); s.aborts {
		rows = 0
		a.wantProblem(t, 503, idemhttp.CodeUnavailable)
	} else {
		a.want(t, 201, "ran", false)
	}
	if n, err := s.count(); err != nil || n != rows {
		t.Errorf("the store holds %d rows, %v; want %d", n, err, rows)
	}
}
