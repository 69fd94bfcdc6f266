package idemhttp_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/fingerprint"
	"github.com/idem-go/idem/idemhttp"
)

// discard is a ResponseWriter that keeps nothing, so that only the guard is measured.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// post is one request of 256 bytes, used again with other keys.
type post struct {
	body    []byte
	reader  bytes.Reader
	request *http.Request
	header  http.Header
}

func newPost() *post {
	p := &post{body: bytes.Repeat([]byte("x"), 256), header: make(http.Header)}
	p.request = httptest.NewRequest("POST", "/orders?dry=1", nil)
	p.request.Header.Set("Content-Type", "application/json")
	p.request.ContentLength = int64(len(p.body))
	return p
}

func (p *post) serve(h http.Handler, key []string) {
	p.reader.Reset(p.body)
	p.request.Body = io.NopCloser(&p.reader)
	p.request.Header["Idempotency-Key"] = key
	clear(p.header)
	h.ServeHTTP(&discard{p.header}, p.request)
}

var created = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/orders/1")
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, `{"id":1}`)
})

func newBenchGuard(b testing.TB) *idemhttp.Guard {
	g, err := idemhttp.New(memory.New(), idemhttp.Config{Operation: idem.Config{Name: "bench"}, Scope: idemhttp.Global})
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func keys(n int) [][]string {
	all := make([][]string, n)
	for i := range all {
		all[i] = []string{"8e03978e-40d5-43dd-bc93-" + strconv.Itoa(100000000000+i)}
	}
	return all
}

// BenchmarkGuard is the first run of a POST of 256 bytes on the memory driver: all
// that a guarded request costs beside its handler and a real store.
func BenchmarkGuard(b *testing.B) {
	h := newBenchGuard(b).Handler(created)
	p := newPost()
	all := keys(b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for _, key := range all {
		p.serve(h, key)
	}
}

// BenchmarkReplay is a repeat of such a request.
func BenchmarkReplay(b *testing.B) {
	h := newBenchGuard(b).Handler(created)
	p := newPost()
	key := []string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}
	p.serve(h, key)
	b.ReportAllocs()
	for b.Loop() {
		p.serve(h, key)
	}
}

// BenchmarkUnguarded is the same request without a guard, to subtract.
func BenchmarkUnguarded(b *testing.B) {
	p := newPost()
	key := []string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}
	b.ReportAllocs()
	for b.Loop() {
		p.serve(created, key)
	}
}

// BenchmarkOperation is the operation alone, with an answer of the same size: what
// the guard is built on.
func BenchmarkOperation(b *testing.B) {
	op := newBenchGuard(b).Operation()
	fp := fingerprint.Bytes([]byte("x"))
	answer := idemhttp.Response{
		Status: 201, Body: []byte(`{"id":1}`),
		Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/1"}},
	}
	run := func(context.Context, *idem.Run) (idemhttp.Response, error) { return answer, nil }
	all := keys(b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for _, key := range all {
		if _, err := op.Do(b.Context(), idem.Key{Scope: "s", ID: key[0]}, fp, run); err != nil {
			b.Fatal(err)
		}
	}
}

// What a guarded request may allocate in all, and what its guard may add to its handler
// and its operation. The contract allows 40.
const (
	maxGuardedAllocs = 35
	maxOwnAllocs     = 12
)

func TestOwnAllocations(t *testing.T) {
	const runs = 200
	h, op := newBenchGuard(t).Handler(created), newBenchGuard(t).Operation()
	p, all := newPost(), keys(4*runs)
	next := func() (key []string) {
		key, all = all[0], all[1:]
		return key
	}
	guarded := testing.AllocsPerRun(runs, func() { p.serve(h, next()) })
	unguarded := testing.AllocsPerRun(runs, func() { p.serve(created, next()) })
	answer := idemhttp.Response{Status: 201, Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/1"}}, Body: []byte(`{"id":1}`)}
	fp := fingerprint.Bytes([]byte("x"))
	operation := testing.AllocsPerRun(runs, func() {
		op.Do(t.Context(), idem.Key{Scope: "s", ID: next()[0]}, fp, func(context.Context, *idem.Run) (idemhttp.Response, error) { return answer, nil })
	})
	if own := guarded - unguarded - operation; own > maxOwnAllocs || guarded > maxGuardedAllocs {
		t.Errorf("a guarded request allocates %v times, want at most %d: %v in the handler, %v in the operation, %v in the guard, want at most %d",
			guarded, maxGuardedAllocs, unguarded, operation, own, maxOwnAllocs)
	}
}
