package idemhttp_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// status answers with the status that the path names.
func status(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		n = 500
	}
	w.WriteHeader(n)
	io.WriteString(w, "ran")
}

// Every status that a handler can answer, by the table of DefaultSettle.
func TestStored_Statuses(t *testing.T) {
	e := serve(t, memory.New(), status)
	for n := 200; n <= 599; n++ {
		want := idemhttp.DefaultSettle(n) != idemhttp.Release
		if want == (n == 429 || n == 503) {
			t.Errorf("DefaultSettle(%d) = %v", n, idemhttp.DefaultSettle(n))
		}
		runs := e.runs.Load()
		first := e.post(fmt.Sprint(n), "b", path(fmt.Sprint("/", n)))
		again := e.post(fmt.Sprint(n), "b", path(fmt.Sprint("/", n)))
		if first.status != n || first.replayed() || again.status != n || first.body != again.body || again.replayed() != want {
			t.Errorf("%d: first %d %q, repeat %d %q, replayed %v", n, first.status, first.body, again.status, again.body, again.replayed())
		}
		if want {
			runs--
		}
		e.wantRuns(runs + 2)
	}
}

func TestStored_SettleOverrides(t *testing.T) {
	e := serve(t, memory.New(), status, func(c *idemhttp.Config) {
		c.Settle = func(status int) idemhttp.Settlement {
			if status == 503 {
				return idemhttp.Store
			}
			return idemhttp.Release
		}
	})
	for range 2 {
		e.post("a", "b", path("/200"))
	}
	e.wantRuns(2)
	e.post("b", "b", path("/503"))
	e.post("b", "b", path("/503")).want(t, 503, "ran", true)
	e.wantRuns(3)
}

// The same table inside a transaction, with what becomes of the business writes.
func TestTransaction_Statuses(t *testing.T) {
	orders := func(w http.ResponseWriter, r *http.Request) {
		if err := insert(idemhttp.Tx[*sql.Tx](r.Context()), r.URL.Path); err != nil {
			panic(err)
		}
		status(w, r)
	}
	for _, tt := range []struct {
		status, rows int
		replayed     bool
	}{
		{200, 1, true}, {201, 1, true}, {204, 1, true}, {303, 1, true},
		{400, 0, true}, {401, 0, true}, {404, 0, true}, {409, 0, true}, {422, 0, true}, {500, 0, true}, {502, 0, true},
		{429, 0, false}, {503, 0, false},
	} {
		t.Run(fmt.Sprint(tt.status), func(t *testing.T) {
			d := openSQLite(t)
			e := serveTx(t, d, orders)
			p := path(fmt.Sprint("/", tt.status))
			first, again := e.post("k", "b", p), e.post("k", "b", p)
			if first.status != tt.status || again.status != tt.status || first.body != again.body || first.replayed() || again.replayed() != tt.replayed {
				t.Errorf("first %+v, repeat %+v", first, again)
			}
			wantOrders(t, d, tt.rows)
			if tt.replayed {
				e.wantRuns(1)
			} else {
				e.wantRuns(2)
			}
		})
	}
}

func TestTransaction_SettleOverrides(t *testing.T) {
	d := openSQLite(t)
	e := serveTx(t, d, func(w http.ResponseWriter, r *http.Request) {
		if err := insert(idemhttp.Tx[*sql.Tx](r.Context()), "row"); err != nil {
			panic(err)
		}
		status(w, r)
	}, func(c *idemhttp.Config) {
		c.Settle = func(status int) idemhttp.Settlement {
			switch status {
			case 402: // declined, and that is recorded
				return idemhttp.Store
			case 200:
				return idemhttp.StoreRolledBack
			}
			return idemhttp.Release
		}
	})
	e.post("a", "b", path("/402")).want(t, 402, "ran", false)
	e.post("a", "b", path("/402")).want(t, 402, "ran", true)
	wantOrders(t, d, 1)
	e.post("b", "b", path("/200")).want(t, 200, "ran", false)
	e.post("b", "b", path("/200")).want(t, 200, "ran", true)
	wantOrders(t, d, 1)
	e.post("c", "b", path("/400")).want(t, 400, "ran", false)
	e.post("c", "b", path("/400")).want(t, 400, "ran", false)
	wantOrders(t, d, 1)
}

func TestTransaction_HeaderTooLarge(t *testing.T) {
	e := serveTx(t, openSQLite(t), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("h", 70<<10))
		w.WriteHeader(400)
	}, limits)
	e.post("k", "b").want(t, 400, "", false)
	e.post("k", "b").wantProblem(t, 409, idemhttp.CodeNotStored)
	e.wantRuns(1)
}

func TestTransaction_ResponseTooLarge(t *testing.T) {
	d := openSQLite(t)
	e := serveTx(t, d, func(w http.ResponseWriter, r *http.Request) {
		if err := insert(idemhttp.Tx[*sql.Tx](r.Context()), "row"); err != nil {
			panic(err)
		}
		if r.URL.Path == "/bad" {
			w.WriteHeader(400)
		}
		io.WriteString(w, strings.Repeat("x", limit+1))
	}, limits)
	for p, status := range map[string]int{"/good": 200, "/bad": 400} {
		e.post(p, "b", path(p)).want(t, status, strings.Repeat("x", limit+1), false)
		e.post(p, "b", path(p)).wantProblem(t, 409, idemhttp.CodeNotStored)
	}
	e.wantRuns(2)
	wantOrders(t, d, 1)
}

// The answer, the key and the business rows are one commit: the client never has
// an answer whose rows are not there.
func TestTransaction_OneCommit(t *testing.T) {
	d := openSQLite(t)
	e := serveTx(t, d, func(w http.ResponseWriter, r *http.Request) {
		tx := idemhttp.Tx[*sql.Tx](r.Context())
		if err := insert(tx, "row"); err != nil {
			panic(err)
		}
		if _, err := tx.Exec("INSERT INTO nowhere VALUES (1)"); err == nil {
			t.Error("no error from a statement that cannot work")
		}
		panic("after the writes")
	})
	if a := <-e.async("k", "b"); a.err == nil {
		t.Fatalf("a panic was answered %v", a)
	}
	wantOrders(t, d, 0)
	if found, err := e.guard.Operation().Lookup(t.Context(), idem.Key{Scope: "tenant-", ID: "k"}); err != nil || found.State != idem.StateAbsent {
		t.Errorf("the key is %v, %v; want absent", found.State, err)
	}
}

// record reads what the store holds.
func record(t *testing.T, drv driver.Driver, id string) driver.Record {
	t.Helper()
	rec, err := drv.Get(t.Context(), driver.GetParams{Key: idem.Key{Scope: "tenant-", ID: id}})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestStored_Headers(t *testing.T) {
	drv := memory.New()
	e := serve(t, drv, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Connection", "x-hop, close")
		h.Set("Date", "Mon, 02 Jan 2006 15:04:05 GMT")
		for _, name := range []string{"Set-Cookie", "Www-Authenticate", "Authorization", "X-Hop", "Keep-Alive", "Te", "Upgrade",
			"Proxy-Authenticate", "Proxy-Anything", "X-Request-Id", "Idempotent-Replayed"} {
			h.Set(name, "secret")
		}
		h["set-cookie"] = []string{"secret"} // a spelling that net/http keeps
		h.Add("Link", "</a>")
		h.Add("Link", "</b>")
		h.Set("Location", "/orders/1")
		h.Set("ETag", `"1"`)
		h["x-odd"] = []string{"kept"}
		h.Set("X-Empty", "")
		w.WriteHeader(201)
	}, func(c *idemhttp.Config) { c.DropHeaders = []string{"x-request-id"} })
	first, again := e.post("k", "b"), e.post("k", "b")
	if !again.replayed() || bytes.Contains(record(t, drv, "k").Result, []byte("secret")) {
		t.Errorf("stored: %q", record(t, drv, "k").Result)
	}
	if first.replayed() || first.header.Get("X-Request-Id") != "secret" || len(first.header["Set-Cookie"]) != 2 || first.header.Get("Date") != "Mon, 02 Jan 2006 15:04:05 GMT" {
		t.Errorf("the first caller's fields are %v", first.header)
	}
	for _, h := range []http.Header{first.header, again.header} {
		if !slices.Equal(h["Link"], []string{"</a>", "</b>"}) || h.Get("Location") != "/orders/1" || h.Get("Etag") != `"1"` ||
			h.Get("X-Odd") != "kept" || len(h["X-Empty"]) != 1 {
			t.Errorf("fields are %v", h)
		}
	}
	for name := range again.header {
		if strings.Contains(strings.Join(again.header[name], ""), "secret") {
			t.Errorf("a replay has %s", name)
		}
	}
}

// What handlers around the guard set is theirs, in a replay as in the first answer.
func TestStored_HeadersAround(t *testing.T) {
	n := 0
	around := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n++
			h := w.Header()
			h.Set("X-Request-Id", fmt.Sprint(n))
			h.Set("Vary", "Origin")
			h.Set("X-Removed", "here")
			h.Set("X-Changed", "before")
			next.ServeHTTP(w, r)
		})
	}
	e := serve(t, memory.New(), text(200, ""))
	e = e.around(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Accept")
		h.Del("X-Removed")
		h.Set("X-Changed", "after")
	}, around)
	for i := range 3 {
		a := e.post("k", "b")
		h := a.header
		if a.replayed() != (i > 0) || h.Get("X-Request-Id") != fmt.Sprint(i+1) || !slices.Equal(h["Vary"], []string{"Origin", "Accept"}) ||
			len(h["X-Removed"]) > 0 || !slices.Equal(h["X-Changed"], []string{"after"}) {
			t.Errorf("answer %d has %v", i, h)
		}
	}
	e.wantRuns(1)
}

func TestStored_NoBody(t *testing.T) {
	var failed error
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
		_, failed = io.WriteString(w, "x")
	})
	for _, status := range []int{204, 304} {
		p := path(fmt.Sprint("/", status))
		e.post(fmt.Sprint(status), "b", p).want(t, status, "", false)
		e.post(fmt.Sprint(status), "b", p).want(t, status, "", true)
		if failed != http.ErrBodyNotAllowed {
			t.Errorf("%d: writing a body fails with %v", status, failed)
		}
	}
	// A handler that does nothing answers 200, as without a guard.
	e = serve(t, memory.New(), func(http.ResponseWriter, *http.Request) {})
	e.post("k", "b").want(t, 200, "", false)
	e.post("k", "b").want(t, 200, "", true)
}

func TestStored_ContentType(t *testing.T) {
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
			w.Header()["Content-Type"] = nil
		case "/coded":
			w.Header().Set("Content-Encoding", "identity")
		}
		io.WriteString(w, "<html>")
	})
	for p, want := range map[string][]string{"/": {"text/html; charset=utf-8"}, "/none": nil, "/coded": nil} {
		for range 2 {
			if a := e.post(p, "b", path(p)); !slices.Equal(a.header["Content-Type"], want) {
				t.Errorf("%s: replayed %v, Content-Type is %q, want %q", p, a.replayed(), a.header["Content-Type"], want)
			}
		}
	}
}

func TestStored_ContentLength(t *testing.T) {
	var failed error
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", r.URL.Path[1:])
		_, failed = w.Write([]byte("12345"))
	})
	for range 2 {
		if a := e.post("exact", "b", path("/5")); a.body != "12345" || a.header.Get("Content-Length") != "5" {
			t.Errorf("answer is %+v", a)
		}
	}
	e.wantRuns(1)
	// Half an answer is none, and neither is one that is cut.
	for _, declared := range []string{"/3", "/9"} {
		for range 2 {
			e.post(declared, "b", path(declared)).wantProblem(t, 503, idemhttp.CodeInterrupted)
		}
		if (declared == "/3") != (failed == http.ErrContentLength) {
			t.Errorf("%s: writing fails with %v", declared, failed)
		}
	}
	e.wantRuns(5)
}

func TestStored_Trailers(t *testing.T) {
	drv := memory.New()
	e := serve(t, drv, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Absent")
		w.Header().Add("Trailer", "X-Secret")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "1")
		w.Header().Set("X-Secret", "hidden")
		w.Header().Set("X-Late", "not sent")
		w.Header().Set(http.TrailerPrefix+"X-Unannounced", "2")
	}, func(c *idemhttp.Config) { c.DropHeaders = []string{"X-Secret"} })
	first, again := e.post("k", "b"), e.post("k", "b")
	first.want(t, 200, "body", false)
	again.want(t, 200, "body", true)
	if first.trailer.Get("X-Secret") != "hidden" || again.trailer.Get("X-Secret") != "" {
		t.Errorf("trailers are %v, then %v", first.trailer, again.trailer)
	}
	for _, a := range []answer{first, again} {
		if a.trailer.Get("X-Sum") != "1" || a.trailer.Get("X-Unannounced") != "2" || a.header.Get("X-Late") != "" {
			t.Errorf("trailers are %v, fields %v", a.trailer, a.header)
		}
	}
}

// forge replaces the stored outcome of a key.
func forge(t *testing.T, drv driver.Driver, id string, change func([]byte) []byte) {
	t.Helper()
	rec := record(t, drv, id)
	holder := driver.HolderParams{Key: rec.Key, Token: rec.Token, Fence: rec.Fence}
	if err := drv.Forget(t.Context(), driver.ForgetParams{HolderParams: holder}); err != nil {
		t.Fatal(err)
	}
	holder.Token = driver.NewToken()
	claimed, err := drv.Claim(t.Context(), driver.ClaimParams{
		Key: rec.Key, Operation: rec.Operation, Fingerprint: rec.Fingerprint, Token: holder.Token, Lease: time.Minute, Retention: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	holder.Fence = claimed.Fence
	err = drv.Complete(t.Context(), driver.CompleteParams{HolderParams: holder, Result: change(slices.Clone(rec.Result)), Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
}

// A record that a newer version wrote, or that is damaged, is not misread.
func TestStored_Unreadable(t *testing.T) {
	d := openSQLite(t)
	e := serveTx(t, d, status)
	for _, p := range []string{"/200", "/400"} {
		runs := e.runs.Load()
		e.post(p, "b", path(p))
		forge(t, d, p, func(b []byte) []byte {
			at := 2 // after the core's own two bytes
			if p == "/400" {
				at = bytes.Index(b, []byte("\x01\x90\x03")) // version 1, status 400
			}
			b[at] = 99
			return b
		})
		e.post(p, "b", path(p)).wantProblem(t, 500, idemhttp.CodeUnreadable)
		e.wantRuns(runs + 1)
	}
}

func TestStored_Lookup(t *testing.T) {
	e := serveTx(t, openSQLite(t), status)
	for p, want := range map[string]int{"/201": 201, "/404": 404, "/503": 0, "/never": 0} {
		if p != "/never" {
			e.post(p, "b", path(p))
		}
		found, err := e.guard.Operation().Lookup(t.Context(), idem.Key{Scope: "tenant-", ID: p})
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := idemhttp.Stored(found); ok != (want != 0) || r.Status != want || ok && string(r.Body) != "ran" {
			t.Errorf("%s: stored is %+v, %v", p, r, ok)
		}
	}
}
