package idemhttp_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/idemhttp"
)

// patience bounds every wait of a test for something that must happen.
const patience = 30 * time.Second

// env is one guarded endpoint on a real server.
type env struct {
	t      testing.TB
	guard  *idemhttp.Guard
	srv    *httptest.Server
	client *http.Client
	runs   atomic.Int64
	log    logBuffer
}

func config(change ...func(*idemhttp.Config)) idemhttp.Config {
	cfg := idemhttp.Config{
		Operation: idem.Config{Name: "orders.create"},
		Logger:    slog.New(slog.DiscardHandler),
		Scope:     func(r *http.Request) (string, error) { return "tenant-" + r.Header.Get("X-Tenant"), nil },
	}
	for _, f := range change {
		f(&cfg)
	}
	return cfg
}

// serve starts a server for h, guarded under a lease.
func serve(t testing.TB, drv driver.Driver, h http.HandlerFunc, change ...func(*idemhttp.Config)) *env {
	e := &env{t: t}
	cfg := config(change...)
	cfg.Logger = slog.New(slog.NewTextHandler(&e.log, nil))
	g, err := idemhttp.New(drv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e.start(g, h, nil)
}

// serveTx is serve inside the transactions of a SQLite database.
func serveTx(t testing.TB, drv driver.TxDriver[*sql.Tx], h http.HandlerFunc, change ...func(*idemhttp.Config)) *env {
	e := &env{t: t}
	cfg := config(change...)
	cfg.Logger = slog.New(slog.NewTextHandler(&e.log, nil))
	g, err := idemhttp.NewTx(drv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e.start(g, h, nil)
}

// start starts a server for h behind g. Wrap puts handlers around the guard.
func (e *env) start(g *idemhttp.Guard, h http.HandlerFunc, wrap func(http.Handler) http.Handler) *env {
	e.guard = g
	counted := func(w http.ResponseWriter, r *http.Request) {
		e.runs.Add(1)
		h(w, r)
	}
	handler := g.Handler(http.HandlerFunc(counted))
	if wrap != nil {
		handler = wrap(handler)
	}
	e.srv = httptest.NewUnstartedServer(handler)
	e.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	e.srv.Start()
	e.t.Cleanup(e.srv.Close)
	e.client = client(e.srv)
	return e
}

// around starts another server with handlers around the same guard.
func (e *env) around(h http.HandlerFunc, wrap func(http.Handler) http.Handler) *env {
	return (&env{t: e.t}).start(e.guard, h, wrap)
}

// wantRuns checks how often the handler has run.
func (e *env) wantRuns(want int64) {
	e.t.Helper()
	if got := e.runs.Load(); got != want {
		e.t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// answer is what a client saw.
type answer struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	problem idemhttp.Problem // when the body is one
	err     error
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

type option func(*http.Request)

func header(name, value string) option { return func(r *http.Request) { r.Header.Add(name, value) } }

func method(m string) option { return func(r *http.Request) { r.Method = m } }

func path(p string) option {
	return func(r *http.Request) { r.URL.Path, r.URL.RawQuery, _ = strings.Cut(p, "?") }
}

// client decodes nothing by itself.
func client(srv *httptest.Server) *http.Client {
	c := srv.Client()
	if tr, ok := c.Transport.(*http.Transport); ok {
		tr.DisableCompression = true
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

func (e *env) request(ctx context.Context, key, body string, opts ...option) *http.Request {
	e.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", e.srv.URL+"/orders", strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for _, o := range opts {
		o(req)
	}
	return req
}

// post sends a request; a key that is empty is not sent.
func (e *env) post(key, body string, opts ...option) answer {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	a := do(e.client, e.request(ctx, key, body, opts...))
	if a.err != nil {
		e.t.Fatal(a.err)
	}
	return a
}

// async sends a request from another goroutine.
func (e *env) async(key, body string, opts ...option) <-chan answer {
	e.t.Helper()
	c, req := e.client, e.request(e.t.Context(), key, body, opts...)
	ch := make(chan answer, 1)
	go func() { ch <- do(c, req) }()
	return ch
}

func do(c *http.Client, req *http.Request) (a answer) {
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	a = answer{status: resp.StatusCode, header: resp.Header, body: string(b), trailer: resp.Trailer, err: err}
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		a.err = errors.Join(err, json.Unmarshal(b, &a.problem))
	}
	return a
}

func receive[T any](t testing.TB, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
	}
	return v
}

// eventually waits for a condition that nothing signals.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v until %s", patience, what)
		}
	}
}

func (a answer) want(t testing.TB, status int, body string, replayed bool) {
	t.Helper()
	if a.status != status || a.body != body || a.replayed() != replayed {
		t.Errorf("answer is %d %q, replayed %v; want %d %q, replayed %v", a.status, a.body, a.replayed(), status, body, replayed)
	}
}

// wantProblem checks a refusal against its row in the table.
func (a answer) wantProblem(t testing.TB, status int, code string) {
	t.Helper()
	if a.status != status || a.problem.Code != code {
		t.Fatalf("answer is %d %q %q, want a problem %d %s", a.status, a.problem.Code, a.body, status, code)
	}
	for _, p := range idemhttp.Problems() {
		if p.Code != code {
			continue
		}
		if a.problem.Type != p.Type || a.problem.Title != p.Title || a.problem.Detail == "" || a.problem.Status != status ||
			a.problem.RetrySameKey != p.RetrySameKey || a.problem.RetryNewKey != p.RetryNewKey {
			t.Errorf("problem is %+v, want %+v", a.problem, p)
		}
		if a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Cache-Control") != "no-store" || a.replayed() {
			t.Errorf("fields are %v", a.header)
		}
		return
	}
	t.Errorf("the table has no code %s", code)
}

// gate is a handler that says when it was entered and goes on when it is told to.
type gate struct{ entered, leave chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 8), make(chan struct{})} }

func (g *gate) handler(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.entered <- struct{}{}
		<-g.leave
		next(w, r)
	}
}

// text is a handler that answers a text.
func text(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// logBuffer is a log to look at.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var errDown = errors.New("connection refused")

// faulty is a store that fails on demand.
type faulty struct {
	driver.Driver
	claim, complete atomic.Pointer[func(context.Context) error]
}

func (f *faulty) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	if before := f.claim.Load(); before != nil {
		if err := (*before)(ctx); err != nil {
			return driver.Record{}, err
		}
	}
	return f.Driver.Claim(ctx, p)
}

func (f *faulty) Complete(ctx context.Context, p driver.CompleteParams) error {
	if before := f.complete.Load(); before != nil {
		if err := (*before)(ctx); err != nil {
			return err
		}
	}
	return f.Driver.Complete(ctx, p)
}

// fails returns a fault that happens n times.
func fails(n int64) *func(context.Context) error {
	var seen atomic.Int64
	f := func(context.Context) error {
		if seen.Add(1) <= n {
			return errDown
		}
		return nil
	}
	return &f
}

func newFaulty() *faulty { return &faulty{Driver: memory.New()} }

// openSQLite returns a driver over a new database with a table of orders.
func openSQLite(t testing.TB) *sqlite.Driver {
	t.Helper()
	d, err := sqlite.Open(filepath.Join(t.TempDir(), "idem.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(); d.DB().Close() })
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.DB().Exec("CREATE TABLE orders (name TEXT)"); err != nil {
		t.Fatal(err)
	}
	return d
}

func insert(tx *sql.Tx, name string) error {
	_, err := tx.Exec("INSERT INTO orders (name) VALUES (?)", name)
	return err
}

func wantOrders(t testing.TB, d *sqlite.Driver, want int) {
	t.Helper()
	var n int
	if err := d.DB().QueryRow("SELECT count(*) FROM orders").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != want {
		t.Errorf("the store holds %d orders, want %d", n, want)
	}
}
