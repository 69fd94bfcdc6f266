package idemhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// A request that is too large ends its own stream of HTTP/2, and not the connection
// that others share.
func TestEdge_TooLargeOverHTTP2(t *testing.T) {
	g, err := idemhttp.New(memory.New(), config(limits))
	if err != nil {
		t.Fatal(err)
	}
	e := serveH2(t, g.Handler(text(200, "ran")))
	reused := false
	trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
	for i, length := range []int{1, limit + 1, 1} {
		req := e.request(httptrace.WithClientTrace(t.Context(), trace), fmt.Sprint("k", i), strings.Repeat("b", length))
		a := do(e.client, req)
		if a.err != nil || a.header.Get("Connection") != "" {
			t.Errorf("%d bytes: %+v", length, a)
		}
		if length > limit {
			a.wantProblem(t, 413, idemhttp.CodeRequestTooLarge)
		}
	}
	if !reused {
		t.Error("the connection was closed")
	}
}

// A handler that writes beyond its Content-Length does not get a cut answer stored
// as a whole one: like net/http, the guard refuses the write that goes beyond.
func TestEdge_MoreThanContentLength(t *testing.T) {
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		io.WriteString(w, "123")
		if n, err := io.WriteString(w, "456"); n != 0 || err != http.ErrContentLength {
			t.Errorf("writing too much is %d, %v", n, err)
		}
		if r.URL.Path == "/whole" {
			io.WriteString(w, "45")
		}
	})
	for range 2 {
		e.post("k", "b").wantProblem(t, 503, idemhttp.CodeInterrupted)
	}
	if !strings.Contains(e.log.String(), "Content-Length") {
		t.Errorf("the log is %q", e.log.String())
	}
	e.post("whole", "b", path("/whole")).want(t, 200, "12345", false)
	e.post("whole", "b", path("/whole")).want(t, 200, "12345", true)
}

// The trailers of handlers around the guard are theirs, in first answers and replays.
func TestEdge_TrailersAround(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/own" {
			w.Header().Add("Trailer", "X-Own")
		}
		io.WriteString(w, "ran")
		if r.URL.Path == "/own" {
			w.Header().Set("X-Own", "own")
		}
	}
	e := serve(t, memory.New(), h).around(h, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Outer")
			next.ServeHTTP(w, r)
			w.Header().Set("X-Outer", "outer")
		})
	})
	for _, p := range []string{"/none", "/own"} {
		for _, replayed := range []bool{false, true} {
			a := e.post(p, "b", path(p))
			a.want(t, 200, "ran", replayed)
			if a.trailer.Get("X-Outer") != "outer" || (a.trailer.Get("X-Own") == "own") != (p == "/own") {
				t.Errorf("%s, replayed %v: trailers %v", p, replayed, a.trailer)
			}
		}
	}
}
