package idemhttp_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/idemhttp"
)

// The life of a request: interim answers, panics, hang-ups, timeouts, a store that
// dies.

func proxyTo(t testing.TB, target string) http.Handler {
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return httputil.NewSingleHostReverseProxy(u)
}

// gzipped compresses as such middlewares do.
func gzipped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(&gzipWriter{w, z}, r)
	})
}

type gzipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (g *gzipWriter) WriteHeader(status int) {
	g.Header().Del("Content-Length")
	g.ResponseWriter.WriteHeader(status)
}

func (g *gzipWriter) Write(b []byte) (int, error) {
	g.Header().Del("Content-Length")
	return g.z.Write(b)
}

func TestField_H04_ContentEncoding(t *testing.T) {
	plain := strings.Repeat("a long answer. ", 400)
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", fmt.Sprint(len(plain)))
		io.WriteString(w, plain)
	}
	decode := func(a answer) string {
		if a.header.Get("Content-Encoding") != "gzip" {
			return a.body
		}
		z, err := gzip.NewReader(strings.NewReader(a.body))
		if err != nil {
			return err.Error()
		}
		b, err := io.ReadAll(z)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	outside := serve(t, memory.New(), handler).around(handler, gzipped)
	inside := serve(t, memory.New(), gzipped(http.HandlerFunc(handler)).ServeHTTP)
	for name, e := range map[string]*env{"outside": outside, "inside": inside} {
		for _, codings := range [][]string{{"gzip", "identity"}, {"identity", "gzip"}} {
			for i, coding := range codings {
				a := e.post(codings[0], "b", header("Accept-Encoding", coding))
				if decode(a) != plain || a.replayed() != (i > 0) || !slices.Contains(a.header["Vary"], "Accept-Encoding") {
					t.Errorf("%s, %v, answer %d: replayed %v, %d bytes, fields %v", name, codings, i, a.replayed(), len(decode(a)), a.header)
				}
				coded := a.header.Get("Content-Encoding") == "gzip"
				want := coding == "gzip"
				if name == "inside" {
					want = codings[0] == "gzip" // as it was stored
				}
				if coded != want {
					t.Errorf("%s, %v, answer %d: coded %v, want %v", name, codings, i, coded, want)
				}
			}
		}
		e.wantRuns(2)
	}
}

func TestField_H08_InterimAnswers(t *testing.T) {
	leave := make(chan struct{})
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.Header().Set("X-Interim", "yes")
		w.WriteHeader(103)
		w.WriteHeader(103)
		<-leave
		w.Header().Del("X-Interim")
		if r.URL.Path == "/201" {
			w.WriteHeader(201)
		}
		io.WriteString(w, "made")
	})
	for p, status := range map[string]int{"/201": 201, "/200": 200} {
		hints := make(chan textproto.MIMEHeader, 8)
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code != 103 {
				t.Errorf("interim status %d", code)
			}
			hints <- h
			return nil
		}})
		first := make(chan answer, 1)
		req := e.request(ctx, p, "b", path(p))
		go func() { first <- do(client(e.srv), req) }()
		for range 2 { // passed on at once: the handler has not ended
			if h := receive(t, hints, "an interim answer"); h.Get("Link") == "" || h.Get("X-Interim") != "yes" {
				t.Errorf("interim fields are %v", h)
			}
		}
		leave <- struct{}{}
		a := receive(t, first, "the answer")
		a.want(t, status, "made", false)
		again := e.post(p, "b", path(p))
		again.want(t, status, "made", true)
		for _, h := range []http.Header{a.header, again.header} {
			if h.Get("X-Interim") != "" || h.Get("Link") == "" {
				t.Errorf("fields are %v", h)
			}
		}
	}
	e.wantRuns(2)

	// 101 hands the connection over, which a guarded handler cannot.
	e = serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(101)
		if _, err := io.WriteString(w, "x"); !errors.Is(err, idemhttp.ErrStreaming) || !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("error is %v", err)
		}
	})
	e.post("k", "b").wantProblem(t, 500, idemhttp.CodeStreaming)
	if a := e.post("k", "b"); a.status != 500 || !a.replayed() {
		t.Errorf("the repeat is %+v", a)
	}
	e.wantRuns(1)
}

func TestField_H09_Panics(t *testing.T) {
	for name, value := range map[string]any{"abort": http.ErrAbortHandler, "other": errors.New("boom"), "text": "boom"} {
		for _, written := range []string{"", "half"} {
			for _, tx := range []bool{false, true} {
				h := func(w http.ResponseWriter, r *http.Request) {
					if written != "" {
						w.WriteHeader(201)
						io.WriteString(w, written)
					}
					panic(value)
				}
				var e *env
				if tx {
					e = serveTx(t, openSQLite(t), h)
				} else {
					e = serve(t, memory.New(), h)
				}
				raised := make(chan any, 1)
				outer := e.around(h, func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						defer func() {
							p := recover()
							raised <- p
							panic(p)
						}()
						next.ServeHTTP(w, r)
					})
				})
				for attempt := range 2 { // nothing is stored, so that a repeat runs
					if a := <-outer.async("k", "b"); a.err == nil {
						t.Errorf("%s, %q written: answered %v, want a connection that is aborted", name, written, a)
					}
					if got := receive(t, raised, "the panic"); got != value {
						t.Errorf("attempt %d: raised %v, want %v", attempt, got, value)
					}
				}
				outer.wantRuns(2)
			}
		}
	}
}

func TestField_H20_TimeoutHandler(t *testing.T) {
	// Outside: the client gets 503, and a repeat the real answer.
	g := newGate()
	h := g.handler(text(201, "made"))
	e := serve(t, memory.New(), h).around(h, func(next http.Handler) http.Handler {
		return http.TimeoutHandler(next, 50*time.Millisecond, "too slow")
	})
	e.post("k", "b").want(t, 503, "too slow", false)
	close(g.leave)
	eventually(t, "the answer is stored", func() bool {
		found, err := e.guard.Operation().Lookup(t.Context(), idem.Key{Scope: "tenant-", ID: "k"})
		return err == nil && found.State == idem.StateComplete
	})
	e.post("k", "b").want(t, 201, "made", true)
	e.wantRuns(1)

	// Inside: its 503 is not final.
	g = newGate()
	inner := http.TimeoutHandler(g.handler(text(201, "made")), 50*time.Millisecond, "too slow")
	e = serve(t, memory.New(), inner.ServeHTTP)
	e.post("k", "b").want(t, 503, "too slow", false)
	close(g.leave)
	e.post("k", "b").want(t, 201, "made", false)
	e.post("k", "b").want(t, 201, "made", true)
	e.wantRuns(2)
}

func TestField_H21_ClientHangsUp(t *testing.T) {
	hangUp := func(e *env, g *gate) {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan answer, 1)
		req := e.request(ctx, "k", "b")
		go func() { gone <- do(client(e.srv), req) }()
		receive(t, g.entered, "the handler")
		cancel()
		if a := receive(t, gone, "the client"); a.err == nil {
			t.Fatalf("answered %v", a)
		}
	}
	for _, tx := range []bool{false, true} {
		make := func(h http.HandlerFunc, change ...func(*idemhttp.Config)) *env {
			if tx {
				return serveTx(t, openSQLite(t), h, change...)
			}
			return serve(t, memory.New(), h, change...)
		}
		// By default the handler is not cancelled, and the repeat replays.
		g := newGate()
		e := make(g.handler(func(w http.ResponseWriter, r *http.Request) {
			if err := r.Context().Err(); err != nil {
				t.Errorf("the handler's context has ended: %v", err)
			}
			io.WriteString(w, "made")
		}))
		hangUp(e, g)
		close(g.leave)
		a := e.post("k", "b", header("Prefer", "wait=10"))
		a.want(t, 200, "made", true)
		e.wantRuns(1)

		// A handler that is told to honour its context leaves no outcome, and the next
		// claim is granted at once.
		for _, leaves := range []func(http.ResponseWriter){
			func(http.ResponseWriter) {},
			func(w http.ResponseWriter) { http.Error(w, "cancelled", 500) },
		} {
			g = newGate()
			first := true
			e = make(func(w http.ResponseWriter, r *http.Request) {
				if first {
					first = false
					g.entered <- struct{}{}
					<-r.Context().Done()
					leaves(w)
					return
				}
				io.WriteString(w, "made")
			}, func(c *idemhttp.Config) { c.CancelOnDisconnect = true })
			hangUp(e, g)
			e.post("k", "b", header("Prefer", "wait=10")).want(t, 200, "made", false)
			e.wantRuns(2)
		}
	}
}

// One who waits and leaves is not noticed, and does not run the handler later.
func TestLife_WaiterHangsUp(t *testing.T) {
	e, g, first := waiting(t, func(c *idemhttp.Config) { c.InFlight = idemhttp.Wait })
	ctx, cancel := context.WithCancel(t.Context())
	req := e.request(ctx, "k", "b")
	gone := make(chan answer, 1)
	go func() { gone <- do(client(e.srv), req) }()
	cancel()
	receive(t, gone, "the client")
	close(g.leave)
	receive(t, first, "the first").want(t, 200, "ran", false)
	e.wantRuns(1)
}

// A request whose context has ended is not run.
func TestLife_EndedBeforeTheClaim(t *testing.T) {
	g, err := idemhttp.New(memory.New(), config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequest("POST", "/", nil).WithContext(ctx)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })).ServeHTTP(w, r)
	if w.Code != 503 || !strings.Contains(w.Body.String(), idemhttp.CodeInterrupted) {
		t.Errorf("answer is %d %q", w.Code, w.Body)
	}
}

func TestField_H22_StoreDownBeforeTheClaim(t *testing.T) {
	drv := newFaulty()
	drv.claim.Store(fails(2))
	e := serve(t, drv, text(200, "ran"))
	for range 2 {
		e.post("k", "b").wantProblem(t, 503, idemhttp.CodeUnavailable)
	}
	e.wantRuns(0)

	drv.claim.Store(fails(2))
	var body string
	e = serve(t, drv, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body = string(b)
	}, func(c *idemhttp.Config) { c.FailOpen = true })
	for range 2 {
		e.post("k", "the body").want(t, 200, "", false)
	}
	e.wantRuns(2)
	if log := e.log.String(); strings.Count(log, "unguarded") != 2 || strings.Contains(log, "the body") || body != "the body" {
		t.Errorf("the log is %q, the handler read %q", log, body)
	}
	// Other refusals are not for FailOpen.
	e.post("k", "b").want(t, 200, "", false)
	e.post("k", "other").wantProblem(t, 422, idemhttp.CodeConflict)
}

func TestField_H23_StoreDownAtTheCompletion(t *testing.T) {
	// Once: nobody notices.
	drv := newFaulty()
	drv.complete.Store(fails(1))
	e := serve(t, drv, text(201, "made"))
	e.post("k", "b").want(t, 201, "made", false)
	e.post("k", "b").want(t, 201, "made", true)
	e.wantRuns(1)

	// For longer than is waited: the caller gets the answer, and nobody runs while
	// the lease lasts.
	down := fails(1 << 40)
	drv.complete.Store(down)
	e = serve(t, drv, text(201, "made"), func(c *idemhttp.Config) { c.Operation.SettleTimeout = 50 * time.Millisecond })
	e.post("other", "b").want(t, 201, "made", false)
	e.post("other", "b").wantProblem(t, 409, idemhttp.CodeInFlight)
	e.wantRuns(1)
	if !strings.Contains(e.log.String(), "could not be stored") {
		t.Errorf("the log is %q", e.log.String())
	}
}

// A store that loses the commit gives neither rows nor an answer.
func TestLife_StoreDownAtTheCommit(t *testing.T) {
	d := openSQLite(t)
	e := serveTx(t, d, func(w http.ResponseWriter, r *http.Request) {
		tx := idemhttp.Tx[*sql.Tx](r.Context())
		if err := insert(tx, "row"); err != nil {
			t.Error(err)
		}
		// The schema is gone when the outcome is to be stored.
		if _, err := tx.Exec("DROP TABLE " + sqlite.DefaultTable); err != nil {
			t.Error(err)
		}
		io.WriteString(w, "made")
	})
	e.post("k", "b").wantProblem(t, 503, idemhttp.CodeUnavailable)
	wantOrders(t, d, 0)
}

func TestLife_LeaseLost(t *testing.T) {
	drv := newFaulty()
	g := newGate()
	e := serve(t, drv, func(w http.ResponseWriter, r *http.Request) {
		run, ok := idemhttp.Run(r.Context())
		if !ok || run.Attempt > 1 {
			io.WriteString(w, fmt.Sprint("attempt ", run.Attempt))
			return
		}
		g.entered <- struct{}{}
		<-g.leave
		io.WriteString(w, "late")
	})
	first := e.async("k", "b")
	receive(t, g.entered, "the handler")
	// Another process takes the key over and answers.
	rec := record(t, drv, "k")
	other := serve(t, drv.Driver, text(200, "taken over"))
	key := idem.Key{Scope: "tenant-", ID: "k"}
	release(t, drv, rec)
	other.post("k", "b").want(t, 200, "taken over", false)
	close(g.leave)
	// The one that was overtaken has no answer that counts.
	receive(t, first, "the first").wantProblem(t, 409, idemhttp.CodeInFlight)
	e.post("k", "b").want(t, 200, "taken over", true)
	if found, err := e.guard.Operation().Lookup(t.Context(), key); err != nil || found.Attempt != 2 {
		t.Errorf("found %+v, %v", found, err)
	}
}

func TestLife_RunAndDeadlines(t *testing.T) {
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		run, ok := idemhttp.Run(r.Context())
		if !ok || run.Attempt != 1 || run.Key.ID != "k" || len(run.DownstreamKey("charge")) != 32 {
			t.Errorf("run is %+v", run)
		}
		c := http.NewResponseController(w)
		if err := errors.Join(c.SetReadDeadline(time.Now().Add(time.Minute)), c.SetWriteDeadline(time.Now().Add(time.Minute)), c.EnableFullDuplex()); err != nil {
			t.Error(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("WriteHeader(0) did not panic")
				}
			}()
			w.WriteHeader(0)
		}()
		io.Copy(w, bufio.NewReader(strings.NewReader("ran")))
	})
	e.post("k", "b").want(t, 200, "ran", false)
	if _, ok := idemhttp.Run(t.Context()); ok {
		t.Error("a run outside a handler")
	}
	if _, ok := idemhttp.Key(t.Context()); ok {
		t.Error("a key outside a handler")
	}
}
