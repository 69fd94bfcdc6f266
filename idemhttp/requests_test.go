package idemhttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// The tests of this file are the rows of the contract's table of requests.

func TestRequests_MethodsGuarded(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	for _, m := range []string{"POST", "PATCH"} {
		e.post(m, "b", method(m)).want(t, 200, "ran", false)
		e.post(m, "b", method(m)).want(t, 200, "ran", true)
	}
	e.wantRuns(2)
	for _, m := range []string{"GET", "PUT", "DELETE", "OPTIONS"} {
		for range 2 {
			e.post("k", "", method(m)).want(t, 200, "ran", false)
		}
	}
	e.wantRuns(10)
	for range 2 {
		e.post("k", "", method("HEAD")).want(t, 200, "", false)
	}
	e.wantRuns(12)

	e = serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) { c.Methods = []string{"DELETE"} })
	e.post("k", "", method("DELETE")).want(t, 200, "ran", false)
	e.post("k", "", method("DELETE")).want(t, 200, "ran", true)
	e.post("", "").want(t, 200, "ran", false)
}

func TestRequests_Skip(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) {
		c.Skip = func(r *http.Request) bool { return r.Header.Get("Accept") == "text/event-stream" }
	})
	for range 2 {
		e.post("k", "", header("Accept", "text/event-stream")).want(t, 200, "ran", false)
	}
	e.wantRuns(2)
}

func TestRequests_KeyMissing(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	e.post("", "b").wantProblem(t, 400, idemhttp.CodeKeyMissing)
	e.wantRuns(0)

	e = serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) { c.Optional = true })
	for range 2 {
		e.post("", "b").want(t, 200, "ran", false)
	}
	e.wantRuns(2)
	// A key that is there, but is none, was meant to protect.
	e.post(`""`, "b").wantProblem(t, 400, idemhttp.CodeKeyInvalid)
	e.wantRuns(2)
}

func TestRequests_KeySyntax(t *testing.T) {
	for _, tt := range []struct {
		value, id string // no id: invalid
	}{
		{"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`, "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{"a", "a"},
		{" \ta\t ", "a"},
		{"a b;c=d", "a b;c=d"},
		{`"a, b"`, "a, b"},
		{`"a\"b\\c"`, `a"b\c`},
		{`a\b`, `a\b`},
		{strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{`"` + strings.Repeat("k", 255) + `"`, strings.Repeat("k", 255)},
		{`"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255)},
		{strings.Repeat("k", 256), ""},
		{`"` + strings.Repeat("k", 256) + `"`, ""},
		{"", ""}, {" ", ""}, {`"`, ""}, {`""`, ""}, {`"  "`, ""},
		{`"a`, ""}, {`a"`, ""}, {`a"b`, ""}, {`"a"b`, ""}, {`"a\`, ""}, {`"a\"`, ""}, {`"a\n"`, ""},
		{`"a";p=1`, ""}, {`"a", "b"`, ""}, {"a, b", ""}, {"a,b", ""},
		{"a\tb", ""}, {"\"a\tb\"", ""}, {"clé", ""}, {"\"cl\xc3\xa9\"", ""}, {"a\x7f", ""}, {"a\x00", ""}, {"\xff", ""},
	} {
		g, id := keyOf(t)
		r := httptest.NewRequest("POST", "/", nil)
		r.Header["Idempotency-Key"] = []string{tt.value}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		switch {
		case tt.id != "" && (w.Code != 200 || *id != tt.id):
			t.Errorf("%q: status %d, key %q, want %q", tt.value, w.Code, *id, tt.id)
		case tt.id == "" && (w.Code != 400 || !strings.Contains(w.Body.String(), idemhttp.CodeKeyInvalid)):
			t.Errorf("%q: status %d %q, want 400 %s", tt.value, w.Code, w.Body, idemhttp.CodeKeyInvalid)
		}
	}
}

// keyOf returns a guarded handler that tells the key it runs under.
func keyOf(t testing.TB) (http.Handler, *string) {
	g, err := idemhttp.New(memory.New(), config())
	if err != nil {
		t.Fatal(err)
	}
	id := new(string)
	return g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, ok := idemhttp.Key(r.Context())
		if !ok {
			t.Error("no key in the context")
		}
		*id = key.ID
	})), id
}

func TestRequests_KeyTwice(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	for _, second := range []string{"k", "other"} {
		a := e.post("k", "b", header("Idempotency-Key", second))
		a.wantProblem(t, 400, idemhttp.CodeKeyInvalid)
	}
	e.wantRuns(0)
}

func TestRequests_Scope(t *testing.T) {
	secret := errors.New("token tok_123 has expired")
	drv := memory.New()
	e := serve(t, drv, text(200, "ran"), func(c *idemhttp.Config) {
		c.Scope = func(r *http.Request) (string, error) {
			scope := r.Header.Get("X-Tenant")
			if scope == "nobody" {
				return "", secret
			}
			return scope, nil
		}
	})
	a := e.post("k", "b", header("X-Tenant", "nobody"))
	a.wantProblem(t, 401, idemhttp.CodeScopeRefused)
	if strings.Contains(a.body, "tok_123") {
		t.Errorf("the error of Scope was sent: %s", a.body)
	}
	for _, scope := range []string{"", "zo\xc3\xab", strings.Repeat("s", 256)} {
		e.post("k", "b", header("X-Tenant", scope)).wantProblem(t, 500, idemhttp.CodeScopeInvalid)
	}
	if !strings.Contains(e.log.String(), "scope") {
		t.Error("a scope that cannot be used was not logged")
	}
	e.wantRuns(0)
	e.post("k", "b", header("X-Tenant", "a")).want(t, 200, "ran", false)
	e.post("k", "b", header("X-Tenant", "b")).want(t, 200, "ran", false)
	e.post("k", "b", header("X-Tenant", "a")).want(t, 200, "ran", true)
	e.wantRuns(2)
}

func TestRequests_Fingerprint(t *testing.T) {
	json := header("Content-Type", "application/json")
	for _, tt := range []struct {
		name          string
		fingerprint   idemhttp.Fingerprint
		first, second string
		opts          []option // of the second
		want          int
	}{
		{"raw", nil, `{"a":1}`, `{"a":1}`, []option{json}, 200},
		{"raw/body", nil, `{"a":1}`, `{"a": 1}`, []option{json}, 422},
		{"raw/method", nil, `{}`, `{}`, []option{json, method("PATCH")}, 422},
		{"raw/path", nil, `{}`, `{}`, []option{json, path("/refunds")}, 422},
		{"raw/query", nil, `{}`, `{}`, []option{json, path("/orders?x=1")}, 422},
		{"raw/content type", nil, `{}`, `{}`, nil, 422},
		{"json", idemhttp.JSON, `{"a":1,"b":[]}`, ` {"b": [], "a": 1.0}`, nil, 200},
		{"json/body", idemhttp.JSON, `{"a":1}`, `{"a":2}`, nil, 422},
		{"json/path", idemhttp.JSON, `{}`, `{}`, []option{path("/refunds")}, 422},
		{"json/query", idemhttp.JSON, `{}`, `{}`, []option{path("/orders?x=1")}, 422},
		{"json/method", idemhttp.JSON, `{}`, `{}`, []option{method("PATCH")}, 422},
		{"json/empty", idemhttp.JSON, ``, `  `, nil, 200},
		{"fields", idemhttp.Fields("/a", "/b/0"), `{"a":1,"b":[2],"at":"10:00"}`, `{"b":[2,3],"a":1}`, nil, 200},
		{"fields/named", idemhttp.Fields("/a"), `{"a":1}`, `{"a":2}`, nil, 422},
		{"fields/path", idemhttp.Fields("/a"), `{"a":1}`, `{"a":1}`, []option{path("/refunds")}, 422},
		{"fields/missing", idemhttp.Fields("/a"), `{"a":null}`, `{}`, nil, 422},
		{"none", idemhttp.None, `1`, `2`, []option{path("/refunds")}, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) { c.Fingerprint = tt.fingerprint })
			e.post("k", tt.first, json).want(t, 200, "ran", false)
			a := e.post("k", tt.second, tt.opts...)
			if tt.want == 422 {
				a.wantProblem(t, 422, idemhttp.CodeConflict)
			} else {
				a.want(t, 200, "ran", true)
			}
			e.wantRuns(1)
		})
	}
}

// A body may not reach out of the place that the recipe gives it.
func TestRequests_FingerprintRefused(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) { c.Fingerprint = idemhttp.JSON })
	for _, body := range []string{`{`, `1,2`, `1],[2`, `{} {}`, `{"a":1,"a":2}`, "\"\xff\"", `9007199254740993`} {
		e.post("k", body).wantProblem(t, 400, idemhttp.CodeNoFingerprint)
	}
	e.wantRuns(0)
}

func TestRequests_FieldsPanics(t *testing.T) {
	for _, pointers := range [][]string{nil, {"a"}, {"/a~2"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Fields(%q) did not panic", pointers)
				}
			}()
			idemhttp.Fields(pointers...)
		}()
	}
}

const limit = 4096

func limits(c *idemhttp.Config) { c.MaxRequest, c.MaxResponse = limit, limit }

func TestRequests_Body(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprint(w, len(b), err, string(b[:min(1, len(b))]), r.ContentLength)
	}
	for _, change := range []func(*idemhttp.Config){limits, func(*idemhttp.Config) {}} {
		cfg := config(change)
		most := max(cfg.MaxRequest, 0)
		if most == 0 {
			most = idemhttp.DefaultMaxRequest
		}
		e := serve(t, memory.New(), echo, change)
		for _, n := range []int{0, 1, 511, 512, 513, most - 1, most} {
			body := strings.Repeat("b", n)
			e.post(fmt.Sprint(n), body).want(t, 200, fmt.Sprint(n, nil, body[:min(1, n)], n), false)
			e.post(fmt.Sprint(n), body).want(t, 200, fmt.Sprint(n, nil, body[:min(1, n)], n), true)
			if n > 0 {
				chunked := func(r *http.Request) { r.ContentLength = -1 }
				e.post(fmt.Sprint("chunked", n), body, chunked).want(t, 200, fmt.Sprint(n, nil, "b", -1), false)
			}
		}
		runs := e.runs.Load()
		for _, n := range []int{most + 1, 10 * most} {
			large := strings.Repeat("b", n)
			if a := <-e.async("large", large); a.err == nil { // the server may close before all is sent
				a.wantProblem(t, 413, idemhttp.CodeRequestTooLarge)
			}
			chunked := func(r *http.Request) { r.ContentLength = -1 }
			if a := <-e.async("large", large, chunked); a.err == nil {
				a.wantProblem(t, 413, idemhttp.CodeRequestTooLarge)
			}
		}
		e.wantRuns(runs)
		// Nothing was claimed.
		e.post("large", "b").want(t, 200, fmt.Sprint(1, nil, "b", 1), false)
	}
}

// raw sends bytes and returns everything that the server sends until it closes, or
// until the client does, when half is false.
func (e *env) raw(request string, closeWrite bool) string {
	e.t.Helper()
	conn, err := net.Dial("tcp", e.srv.Listener.Addr().String())
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		e.t.Fatal(err)
	}
	if closeWrite {
		conn.(*net.TCPConn).CloseWrite()
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(b)
}

func TestRequests_BrokenBody(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	const head = "POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nIdempotency-Key: k\r\n"
	for _, request := range []string{
		head + "Content-Length: 100\r\n\r\nhalf",
		head + "Transfer-Encoding: chunked\r\n\r\n64\r\nhalf",
		head + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		head + "Transfer-Encoding: chunked\r\n\r\nZZ\r\nhalf\r\n0\r\n\r\n",
	} {
		got := e.raw(request, true)
		if !strings.Contains(got, " 400 ") || !strings.Contains(got, idemhttp.CodeRequestIncomplete) {
			t.Errorf("%q is answered with %q", request, got)
		}
	}
	e.wantRuns(0)
	// What was broken was not taken for a request.
	e.post("k", "half").want(t, 200, "ran", false)
}

func TestRequests_ExpectContinue(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"), limits)
	const head = "POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nExpect: 100-continue\r\n"
	got := e.raw(head+"Idempotency-Key: k\r\nContent-Length: 4\r\n\r\nbody", false)
	if !strings.HasPrefix(got, "HTTP/1.1 100 ") || !strings.Contains(got, " 200 ") {
		t.Errorf("answer is %q", got)
	}
	// What is refused is refused before the body is asked for.
	for header, code := range map[string]string{
		"Content-Length: 4\r\n":                          idemhttp.CodeKeyMissing,
		"Idempotency-Key: k\r\nContent-Length: 9999\r\n": idemhttp.CodeRequestTooLarge,
	} {
		if got := e.raw(head+header+"\r\n", false); strings.Contains(got, " 100 ") || !strings.Contains(got, code) {
			t.Errorf("%q is answered with %q, want %s", header, got, code)
		}
	}
	e.wantRuns(1)
}

// The handler's request is the client's, trailers and all.
func TestRequests_Trailers(t *testing.T) {
	var got string
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = string(b) + " " + r.Trailer.Get("X-Sum") + " " + strings.Join(r.TransferEncoding, "")
	})
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(e.raw("POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nIdempotency-Key: k\r\n"+
		"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n", false))), nil)
	if err != nil || resp.StatusCode != 200 || got != "body 1 chunked" {
		t.Errorf("handler got %q, answer %v %v", got, resp, err)
	}
}

// The files of a form that the handler has parsed do not stay behind.
func TestRequests_FormFiles(t *testing.T) {
	down := newFaulty()
	down.claim.Store(fails(1))
	for name, drv := range map[string]driver.Driver{"guarded": memory.New(), "unguarded, by FailOpen": down} {
		t.Run(name, func(t *testing.T) { formFiles(t, drv) })
	}
}

func formFiles(t *testing.T, drv driver.Driver) {
	var name string
	e := serve(t, drv, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
			return
		}
		f, err := r.MultipartForm.File["f"][0].Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if file, ok := f.(*os.File); ok {
			name = file.Name()
		}
	}, func(c *idemhttp.Config) { c.FailOpen = true })
	const form = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n"
	body := form + strings.Repeat("x", 100<<10) + "\r\n--b--\r\n"
	e.post("k", body, header("Content-Type", "multipart/form-data; boundary=b")).want(t, 200, "", false)
	if name == "" {
		t.Fatal("the form was kept in memory")
	}
	eventually(t, "the file is removed", func() bool {
		_, err := os.Stat(name)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func TestConfig(t *testing.T) {
	for field, change := range map[string]func(*idemhttp.Config){
		"Config.Scope":               func(c *idemhttp.Config) { c.Scope = nil },
		"Config.Name":                func(c *idemhttp.Config) { c.Operation.Name = "" },
		"Config.Operation.Codec":     func(c *idemhttp.Config) { c.Operation.Codec = anyCodec{} },
		"Config.Operation.Classify":  func(c *idemhttp.Config) { c.Operation.Classify = func(error) idem.Outcome { return 0 } },
		"Config.Operation.MaxResult": func(c *idemhttp.Config) { c.Operation.MaxResult = 1 },
		"Config.Operation.Wait":      func(c *idemhttp.Config) { c.Operation.Wait = 1 },
		"Config.Header":              func(c *idemhttp.Config) { c.Header = "a b" },
		"Config.ReplayedHeader":      func(c *idemhttp.Config) { c.ReplayedHeader = "a:" },
		"Config.Methods":             func(c *idemhttp.Config) { c.Methods = []string{"POST", "GET"} },
		"Config.MaxRequest":          func(c *idemhttp.Config) { c.MaxRequest = -1 },
		"Config.MaxResponse":         func(c *idemhttp.Config) { c.MaxResponse = 33 << 20 },
		"Config.InFlight":            func(c *idemhttp.Config) { c.InFlight = 3 },
		"Config.MaxWait":             func(c *idemhttp.Config) { c.MaxWait = -1 },
		"Config.StoreTimeout":        func(c *idemhttp.Config) { c.StoreTimeout = 1 },
		"Config.DropHeaders":         func(c *idemhttp.Config) { c.DropHeaders = []string{""} },
	} {
		_, err := idemhttp.New(memory.New(), config(change))
		var bad *idem.ConfigError
		if !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: error is %v", field, err)
		}
	}
	_, err := idemhttp.NewTx(openSQLite(t), config(func(c *idemhttp.Config) { c.FailOpen = true }))
	var bad *idem.ConfigError
	if !errors.As(err, &bad) || bad.Field != "Config.FailOpen" {
		t.Errorf("FailOpen in a transaction: error is %v", err)
	}
	if _, err := idemhttp.New(nil, config()); !errors.Is(err, idem.ErrInvalidConfig) {
		t.Errorf("no driver: error is %v", err)
	}
}

type anyCodec struct{}

func (anyCodec) Marshal(any) ([]byte, error) { return nil, nil }
func (anyCodec) Unmarshal([]byte, any) error { return nil }
