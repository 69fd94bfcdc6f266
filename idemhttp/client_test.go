package idemhttp_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

func TestNewKey(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := make(map[string]bool)
	for range 1000 {
		k := idemhttp.NewKey()
		if !form.MatchString(k) || seen[k] {
			t.Fatalf("key %q", k)
		}
		seen[k] = true
	}
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// retrying sends a request again when it gets an error or 5xx, as retrying clients
// do.
func retrying(next http.RoundTripper) roundTrip {
	return func(r *http.Request) (resp *http.Response, err error) {
		for range 5 {
			if r.GetBody != nil {
				if r.Body, err = r.GetBody(); err != nil {
					return nil, err
				}
			}
			resp, err = next.RoundTrip(r)
			if err == nil && resp.StatusCode < 500 {
				return resp, nil
			}
			if err == nil {
				resp.Body.Close()
			}
		}
		return resp, err
	}
}

// lossy loses the answers of the first n requests, and notes the keys.
func lossy(n int, keys *[]string) roundTrip {
	return func(r *http.Request) (*http.Response, error) {
		*keys = append(*keys, r.Header.Get("Idempotency-Key"))
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err == nil && len(*keys) <= n {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			return nil, errors.New("connection reset")
		}
		return resp, err
	}
}

func TestTransport_RetriesInside(t *testing.T) {
	e := serve(t, memory.New(), text(201, "made"))
	var keys []string
	c := &http.Client{Transport: &idemhttp.Transport{Base: retrying(lossy(3, &keys))}}
	resp, err := c.Post(e.srv.URL, "text/plain", strings.NewReader("b"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(keys) != 4 || keys[0] == "" || keys[0] != keys[3] || resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("keys %q, answer %v", keys, resp)
	}
	e.wantRuns(1)
	// Another request is another operation.
	if resp, err = c.Post(e.srv.URL, "text/plain", strings.NewReader("b")); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if keys[4] == keys[0] {
		t.Error("two requests have one key")
	}
	e.wantRuns(2)
}

func TestTransport_RetriesOutside(t *testing.T) {
	e := serve(t, memory.New(), text(201, "made"))
	var keys []string
	c := &http.Client{Transport: retrying(&idemhttp.Transport{Base: lossy(3, &keys)})}
	key := idemhttp.NewKey()
	req, err := http.NewRequestWithContext(idemhttp.WithKey(t.Context(), key), "POST", e.srv.URL, strings.NewReader("b"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(keys) != 4 || keys[0] != key || keys[3] != key {
		t.Errorf("keys %q, want %q each", keys, key)
	}
	if len(req.Header["Idempotency-Key"]) != 0 {
		t.Error("RoundTrip changed the request")
	}
	e.wantRuns(1)
}

func TestTransport_Fields(t *testing.T) {
	var got http.Header
	base := roundTrip(func(r *http.Request) (*http.Response, error) {
		got = r.Header
		return httptest.NewRecorder().Result(), nil
	})
	send := func(tr idemhttp.Transport, method string, h http.Header, ctxKey string) http.Header {
		t.Helper()
		tr.Base = base
		ctx := t.Context()
		if ctxKey != "" {
			ctx = idemhttp.WithKey(ctx, ctxKey)
		}
		req, err := http.NewRequestWithContext(ctx, method, "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		if _, err := tr.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, m := range []string{"POST", "PATCH"} {
		if h := send(idemhttp.Transport{}, m, nil, ""); len(h.Get("Idempotency-Key")) != 36 {
			t.Errorf("%s has the fields %v", m, h)
		}
	}
	for _, m := range []string{"GET", "PUT", "DELETE"} {
		if h := send(idemhttp.Transport{}, m, nil, "k"); h.Get("Idempotency-Key") != "" {
			t.Errorf("%s has the fields %v", m, h)
		}
	}
	if h := send(idemhttp.Transport{}, "POST", http.Header{"idempotency-key": {"mine"}}, "k"); len(h) != 1 {
		t.Errorf("a request with a key has the fields %v", h)
	}
	if h := send(idemhttp.Transport{Header: "X-Key", Quoted: true}, "POST", nil, `a"\b`); h.Get("X-Key") != `"a\"\\b"` {
		t.Errorf("fields are %v", h)
	}
}

func TestTransport_Redirect(t *testing.T) {
	var keys []string
	mux := http.NewServeMux()
	note := func(r *http.Request) { keys = append(keys, r.Header.Get("Idempotency-Key")) }
	mux.HandleFunc("/a", func(w http.ResponseWriter, r *http.Request) {
		note(r)
		http.Redirect(w, r, "/b", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/b", func(w http.ResponseWriter, r *http.Request) {
		note(r)
		http.Redirect(w, r, "/c", http.StatusPermanentRedirect)
	})
	mux.HandleFunc("/c", func(w http.ResponseWriter, r *http.Request) { note(r); http.Redirect(w, r, "/d", http.StatusSeeOther) })
	mux.HandleFunc("/d", func(w http.ResponseWriter, r *http.Request) { note(r) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	c := &http.Client{Transport: &idemhttp.Transport{}}
	resp, err := c.Post(srv.URL+"/a", "text/plain", strings.NewReader("b"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(keys) != 4 || keys[0] == "" || keys[1] != keys[0] || keys[2] != keys[0] || keys[3] != "" {
		t.Errorf("keys %q, want one for each POST, and none for the GET", keys)
	}
}
