package idemhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/fingerprint"
	"github.com/idem-go/idem/idemhttp"
)

// Field cases: what public reports say has gone wrong elsewhere. Others are in
// life_test.go.

func TestField_H01_SecretsOfTheFirstCaller(t *testing.T) {
	drv := memory.New()
	e := serve(t, drv, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, name := range []string{"Set-Cookie", "WWW-Authenticate", "Authorization", "Date", "X-Request-Id", "X-RateLimit-Remaining", "Proxy-Authenticate"} {
			h.Set(name, "hunter2")
		}
		h.Set("Location", "/orders/1")
		w.WriteHeader(201)
	}, func(c *idemhttp.Config) { c.DropHeaders = []string{"X-Request-Id", "X-RateLimit-Remaining"} })
	if first := e.post("k", "b"); first.header.Get("Set-Cookie") != "hunter2" {
		t.Errorf("the first caller's fields are %v", first.header)
	}
	again := e.post("k", "b")
	if !again.replayed() || again.header.Get("Location") != "/orders/1" {
		t.Errorf("the replay is %+v", again)
	}
	for name, values := range again.header {
		if slices.Contains(values, "hunter2") {
			t.Errorf("the replay gives out %s", name)
		}
	}
	if strings.Contains(string(record(t, drv, "k").Result), "hunter2") {
		t.Error("the store holds a secret")
	}
}

func TestField_H02_KeysOfTwoCallers(t *testing.T) {
	who := func(r *http.Request) (string, error) { return r.Header.Get("X-Who"), nil }
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("X-Who")) },
		func(c *idemhttp.Config) { c.Scope = who })
	for _, pair := range [][2][2]string{
		{{"A", "k"}, {"B", "k"}}, {{"a_b", "c"}, {"a", "b_c"}}, {{"a:b", "c"}, {"a", "b:c"}}, {{"a", "bc"}, {"ab", "c"}}, {{"a b", "c"}, {"a", "b c"}},
	} {
		for range 2 {
			for _, p := range pair {
				if a := e.post(p[1], "b", header("X-Who", p[0])); a.body != p[0] {
					t.Errorf("%q gets the answer of %q", p, a.body)
				}
			}
		}
	}
	e.wantRuns(10)
	// A NUL is in neither a scope nor a key.
	e.post("k", "b", header("X-Who", "")).wantProblem(t, 500, idemhttp.CodeScopeInvalid)
	nul := serve(t, memory.New(), text(200, ""), func(c *idemhttp.Config) {
		c.Scope = func(*http.Request) (string, error) { return "a\x00b", nil }
	})
	nul.post("k", "b").wantProblem(t, 500, idemhttp.CodeScopeInvalid)
	nul.wantRuns(0)
}

func TestField_H03_OneKeyOnTwoEndpoints(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	e.post("k", "b", path("/a")).want(t, 200, "ran", false)
	e.post("k", "b", path("/b")).wantProblem(t, 422, idemhttp.CodeConflict)
	e.post("k", "b", path("/a"), method("PATCH")).wantProblem(t, 422, idemhttp.CodeConflict)
	e.post("k", "b", path("/a?x=1")).wantProblem(t, 422, idemhttp.CodeConflict)
	e.post("k", "b", path("/a")).want(t, 200, "ran", true)
	e.wantRuns(1)
}

func TestField_H06_StreamingBehindAGuard(t *testing.T) {
	// By type assertion the handler sees that it cannot stream, and says so; by
	// ResponseController it gets an error. Its answer is one like any other: stored.
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(http.Flusher); ok {
			t.Error("the writer of a guarded handler is a Flusher")
		}
		io.WriteString(w, "data: 1\n\n")
		fmt.Fprint(w, http.NewResponseController(w).Flush())
	})
	want := "data: 1\n\n" + idemhttp.ErrStreaming.Error()
	e.post("k", "b").want(t, 200, want, false)
	e.post("k", "b").want(t, 200, want, true)
	e.wantRuns(1)

	// Let through by route, also behind a proxy, the first event arrives before the
	// handler ends.
	leave := make(chan struct{})
	e = serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: 1\n\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-leave
	}, func(c *idemhttp.Config) {
		c.Skip = func(r *http.Request) bool { return r.Header.Get("Accept") == "text/event-stream" }
	})
	proxy := httptest.NewServer(proxyTo(t, e.srv.URL))
	defer proxy.Close()
	defer close(leave)
	for _, url := range []string{e.srv.URL, proxy.URL} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Idempotency-Key", "k")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		event := make([]byte, 9)
		if _, err := io.ReadFull(resp.Body, event); err != nil || string(event) != "data: 1\n\n" {
			t.Errorf("first event is %q, %v", event, err)
		}
		resp.Body.Close()
	}
}

func TestField_H07_Hijack(t *testing.T) {
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		hijacker, ok := w.(http.Hijacker)
		if !ok {
			http.Error(w, "no hijacker", 500)
			return
		}
		if _, _, err := hijacker.Hijack(); err != nil {
			http.Error(w, err.Error(), 500)
		}
	})
	upgrade := []option{header("Connection", "Upgrade"), header("Upgrade", "websocket")}
	want := idemhttp.ErrStreaming.Error() + "\n"
	e.post("k", "b", upgrade...).want(t, 500, want, false)
	e.post("k", "b", upgrade...).want(t, 500, want, true) // and the key is not left in flight
	e.wantRuns(1)

	// A writer that is no Hijacker, as under HTTP/2.
	h := e.guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _, err := http.NewResponseController(w).Hijack()
		fmt.Fprint(w, err)
	}))
	r := httptest.NewRequest("POST", "/", nil)
	r.Header.Set("Idempotency-Key", "other")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 200 || w.Body.String() != idemhttp.ErrStreaming.Error() {
		t.Errorf("answer is %d %q", w.Code, w.Body)
	}
}

func TestField_H10_ResponsesOverTheLimit(t *testing.T) { TestAnswers_ResponseTooLarge(t) }

func TestField_H11_RequestBodies(t *testing.T) {
	t.Run("limits", TestRequests_Body)
	t.Run("broken", TestRequests_BrokenBody)
	t.Run("expect", TestRequests_ExpectContinue)
}

func TestField_H13_ReplayIsTheSameAnswer(t *testing.T) {
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Location", "/orders/1")
		h.Set("ETag", `W/"1"`)
		h["Link"] = []string{`</orders/1>; rel="self"`, `</orders>; rel="up"`}
		h.Set("Content-Type", "application/vnd.order+json")
		w.WriteHeader(201)
		io.WriteString(w, `{"id":1}`)
	})
	first := e.wire("k", "b")
	again := e.wire("k", "b")
	if strings.Contains(first, "Idempotent-Replayed") || !strings.Contains(again, "\r\nIdempotent-Replayed: true\r\n") {
		t.Errorf("first %q, replay %q", first, again)
	}
	if a, b := comparable(first), comparable(again); a != b {
		t.Errorf("first %q, replay %q", a, b)
	}
	e.wantRuns(1)
}

func TestField_H14_StoredFailures(t *testing.T) {
	e := serve(t, memory.New(), status)
	for n, stored := range map[int]bool{400: true, 401: true, 409: true, 422: true, 500: true, 429: false, 503: false} {
		p := path(fmt.Sprint("/", n))
		if a := e.post(fmt.Sprint(n), "b", p); a.status != n || a.replayed() {
			t.Errorf("%d: first is %+v", n, a)
		}
		// A failure that is replayed says so.
		if a := e.post(fmt.Sprint(n), "b", p); a.status != n || a.replayed() != stored {
			t.Errorf("%d: repeat is %+v, want replayed %v", n, a, stored)
		}
	}
}

func TestField_H15_MarkOnReplaysOnly(t *testing.T) {
	e, g, first := waiting(t, func(c *idemhttp.Config) { c.InFlight = idemhttp.Wait })
	waiter := e.async("k", "b")
	close(g.leave)
	if a := receive(t, first, "the first"); a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("the first answer is marked: %v", a.header)
	}
	if a := receive(t, waiter, "the waiter"); !a.replayed() {
		t.Errorf("the waiter's answer is not marked: %v", a.header)
	}
	if a := e.post("k", "b"); !a.replayed() {
		t.Errorf("the replay is not marked: %v", a.header)
	}
	// Nor does a handler mark its own answer.
	e = serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Idempotent-Replayed", "true") })
	if e.post("k", "b").replayed() || !e.post("k", "b").replayed() {
		t.Error("the mark is the handler's")
	}
}

func TestField_H16_KeySyntax(t *testing.T) {
	TestRequests_KeySyntax(t)
	// Bare and quoted name one key.
	e := serve(t, memory.New(), text(200, "ran"))
	e.post("abc", "b").want(t, 200, "ran", false)
	e.post(`"abc"`, "b").want(t, 200, "ran", true)
	e.post(`"a\"b"`, "b").want(t, 200, "ran", false)
	e.post(`"a\"b"`, "b").want(t, 200, "ran", true)
	for _, bad := range []string{`"abc";p=1`, `"a", "b"`, `"abc`, strings.Repeat("k", 256), "cl\xc3\xa9", "a\tb"} {
		e.post(bad, "b").wantProblem(t, 400, idemhttp.CodeKeyInvalid)
	}
	e.wantRuns(2)
}

func TestField_H17_BlankKeys(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	e.post("", "b").wantProblem(t, 400, idemhttp.CodeKeyMissing)
	for _, blank := range []string{" ", "   ", "\t", `""`, `"   "`} {
		a := e.post("", "b", func(r *http.Request) { r.Header["Idempotency-Key"] = []string{blank} })
		a.wantProblem(t, 400, idemhttp.CodeKeyInvalid)
	}
	a := e.post("", "b", func(r *http.Request) { r.Header["Idempotency-Key"] = []string{""} })
	a.wantProblem(t, 400, idemhttp.CodeKeyInvalid)
	e.wantRuns(0)
	_, err := e.guard.Operation().Do(t.Context(), idem.Key{Scope: "s"}, fingerprint.None(), nil)
	if err == nil {
		t.Error("Do ran with an empty ID")
	}
}

func TestField_H18_HeaderSpelling(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	for i, name := range []string{"Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY", "iDEMPOTENCY-kEY"} {
		got := e.raw("POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-Tenant: a\r\n"+name+": k\r\nContent-Length: 1\r\n\r\nb", false)
		if strings.Contains(got, "Idempotent-Replayed: true") != (i > 0) || !strings.HasSuffix(got, "ran") {
			t.Errorf("%s: answer is %q", name, got)
		}
	}
	// A map that was filled by hand, in front of the guard.
	for _, name := range []string{"idempotency-key", "IDEMPOTENCY-KEY"} {
		r := httptest.NewRequest("POST", "/orders", strings.NewReader("b"))
		r.Header = http.Header{name: {"k"}, "X-Tenant": {"a"}}
		w := httptest.NewRecorder()
		e.guard.Handler(text(200, "again")).ServeHTTP(w, r)
		if w.Body.String() != "ran" || w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: answer is %d %q", name, w.Code, w.Body)
		}
		r.Header["Idempotency-Key"] = []string{"k"} // in two spellings: twice
		w = httptest.NewRecorder()
		e.guard.Handler(text(200, "again")).ServeHTTP(w, r)
		if w.Code != 400 {
			t.Errorf("%s twice: answer is %d %q", name, w.Code, w.Body)
		}
	}
	// HTTP/2 sends names in lower case.
	h2 := serveH2(t, e.guard.Handler(text(200, "again")))
	if a := h2.post("k", "b", header("X-Tenant", "a")); !a.replayed() || a.body != "ran" {
		t.Errorf("over HTTP/2 the answer is %+v", a)
	}
	e.wantRuns(1)
}
