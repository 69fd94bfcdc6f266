package idemhttp_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// What a handler answers with: codings, interim answers, panics.

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
		go func() { first <- do(e.client, req) }()
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
