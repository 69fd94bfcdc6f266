package idemhttp_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

// release abandons a claim as if its lease had ended.
func release(t *testing.T, drv driver.Driver, rec driver.Record) {
	t.Helper()
	err := drv.Release(t.Context(), driver.ReleaseParams{
		HolderParams: driver.HolderParams{Key: rec.Key, Token: rec.Token, Fence: rec.Fence}, Abandon: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// serveH2 starts a server that speaks HTTP/2.
func serveH2(t testing.TB, h http.Handler) *env {
	e := &env{t: t}
	e.srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request came by %s", r.Proto)
		}
		h.ServeHTTP(w, r)
	}))
	e.srv.EnableHTTP2 = true
	e.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	e.srv.StartTLS()
	t.Cleanup(e.srv.Close)
	e.client = client(e.srv)
	return e
}

// wire returns an answer of HTTP/1.1 as it was sent.
func (e *env) wire(key, body string) string {
	e.t.Helper()
	return e.raw(fmt.Sprintf("POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nIdempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body), false)
}

var allowed = regexp.MustCompile(`\r\n(Date|Idempotent-Replayed): [^\r]*`)

// comparable takes the differences out that a replay may have.
func comparable(wire string) string {
	head, rest, _ := strings.Cut(wire, "\r\n\r\n")
	return allowed.ReplaceAllString(head, "") + "\r\n\r\n" + rest
}

// random answers with a status, fields, a body and trailers that come from a seed.
type random struct{ *rand.Rand }

func newRandom(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 7))} }

func (r random) word(most int, alphabet string) string {
	b := make([]byte, r.IntN(most+1))
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

const (
	tokens = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_|~"
	values = tokens + ` "(),/:;<=>?@[\]{}`
)

func (r random) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	status := 200 + r.IntN(400)
	if status == 429 || status == 503 {
		status = 201
	}
	h := w.Header()
	for range r.IntN(8) {
		name := "X-" + r.word(10, tokens) + "x"
		for range 1 + r.IntN(3) {
			h.Add(name, strings.TrimSpace(r.word(40, values)+"\xe9"+r.word(3, values)))
		}
	}
	if r.IntN(2) == 0 {
		h["Link"] = []string{"</a>", "</b>", ""}
	}
	switch r.IntN(4) {
	case 0:
		h.Set("Content-Type", "application/"+r.word(8, "abc")+"x")
	case 1:
		h["Content-Type"] = nil
	}
	body := make([]byte, []int{0, 1, 100, 2047, 2048, 2049, 5000, 70000}[r.IntN(8)])
	for i := range body {
		body[i] = byte(r.IntN(256))
	}
	trailers := r.IntN(3) == 0
	if trailers {
		h.Set("Trailer", "X-End")
	} else if r.IntN(2) == 0 && status != 204 && status != 304 {
		h.Set("Content-Length", fmt.Sprint(len(body)))
	}
	if r.IntN(3) == 0 && status == 200 {
		status = 0 // implicit
	}
	if status != 0 {
		w.WriteHeader(status)
	}
	for len(body) > 0 {
		n := min(len(body), 1+r.IntN(4096))
		w.Write(body[:n])
		body = body[n:]
	}
	if trailers {
		h.Set("X-End", r.word(10, tokens))
	}
}

// First and replayed answers are the same bytes, but for Date and the mark.
func TestProperty_ReplayIsByteForByte(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	answers := func(w http.ResponseWriter, r *http.Request) {
		var n uint64
		fmt.Sscan(r.Header.Get("Idempotency-Key"), &n)
		newRandom(seed+n).ServeHTTP(w, r)
	}
	e := serve(t, memory.New(), answers)
	h2 := serveH2(t, serve(t, memory.New(), answers).guard.Handler(http.HandlerFunc(answers)))
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	for n := range rounds {
		key := fmt.Sprint(n)
		first, again := e.wire(key, "b"), e.wire(key, "b")
		if strings.Contains(first, "\r\nIdempotent-Replayed: true") || !strings.Contains(again, "\r\nIdempotent-Replayed: true") {
			t.Fatalf("seed %d, key %s: first %.500q, replay %.500q", seed, key, first, again)
		}
		if diff := cmp.Diff(comparable(first), comparable(again)); diff != "" {
			t.Fatalf("seed %d, key %s (-first +replay):\n%s", seed, key, diff)
		}
		a, b := h2.post(key, "b"), h2.post(key, "b")
		if a.replayed() || !b.replayed() {
			t.Fatalf("seed %d, key %s, HTTP/2: %+v, %+v", seed, key, a, b)
		}
		for _, x := range []*answer{&a, &b} {
			x.header.Del("Date")
			x.header.Del("Idempotent-Replayed")
		}
		if diff := cmp.Diff([]any{a.status, a.header, a.body, a.trailer}, []any{b.status, b.header, b.body, b.trailer}); diff != "" {
			t.Fatalf("seed %d, key %s, HTTP/2 (-first +replay):\n%s", seed, key, diff)
		}
	}
	e.wantRuns(int64(rounds))
}

// A guard does not change an answer either: it is what an unguarded server sends,
// but for how the body is framed.
func TestProperty_GuardedIsUnguarded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	answers := func(w http.ResponseWriter, r *http.Request) {
		var n uint64
		fmt.Sscan(r.Header.Get("Idempotency-Key"), &n)
		newRandom(seed+n).ServeHTTP(w, r)
	}
	e := serve(t, memory.New(), answers)
	plain := e.around(nil, func(http.Handler) http.Handler { return http.HandlerFunc(answers) })
	for n := range 100 {
		key := fmt.Sprint(n)
		a, b := e.post(key, "b"), plain.post(key, "b")
		for _, x := range []*answer{&a, &b} {
			x.header.Del("Date")
			x.header.Del("Content-Length")
		}
		if diff := cmp.Diff([]any{b.status, b.header, b.body, b.trailer}, []any{a.status, a.header, a.body, a.trailer}); diff != "" {
			t.Fatalf("seed %d, key %s (-unguarded +guarded):\n%s", seed, key, diff)
		}
	}
}
