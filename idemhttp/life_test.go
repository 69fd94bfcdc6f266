package idemhttp_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
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
		go func() { gone <- do(e.client, req) }()
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
	go func() { gone <- do(e.client, req) }()
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
