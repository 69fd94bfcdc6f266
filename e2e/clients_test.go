// Package e2e tests idemhttp with clients and routers that others have written. It
// is a module of its own, so that users of idem do not inherit them.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stripe/stripe-go/v82"

	"github.com/idem-go/idem/idemhttp"
)

// server is a guarded endpoint in front of which answers get lost.
type server struct {
	*httptest.Server
	guard *idemhttp.Guard
	runs  atomic.Int64

	mu   sync.Mutex
	lose []int // for the next requests: a status to answer instead, after the work is done
	keys []string
}

// serve starts a server for h. For the first requests, the handler's answer is lost
// on its way: the client gets the status in lose, or for 0 a connection that is cut.
func serve(t *testing.T, h http.HandlerFunc, lose ...int) *server {
	t.Helper()
	s := &server{guard: newGuard(t), lose: lose}
	guarded := s.guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		h(w, r)
	}))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
		lost, status := len(s.lose) > 0, 0
		if lost {
			status, s.lose = s.lose[0], s.lose[1:]
		}
		s.mu.Unlock()
		if !lost {
			guarded.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(httptest.NewRecorder(), r)
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s
}

// wantOnce checks that one key came with n requests, and the handler ran once.
func (s *server) wantOnce(t *testing.T, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) != n {
		t.Fatalf("%d requests came, want %d", len(s.keys), n)
	}
	for _, k := range s.keys {
		if k == "" || k != s.keys[0] {
			t.Errorf("keys %q, want one", s.keys)
		}
	}
	if got := s.runs.Load(); got != 1 {
		t.Errorf("the handler ran %d times, want once", got)
	}
}

func made(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.WriteHeader(201)
	fmt.Fprintf(w, "made of %s", b)
}

func retryable() *retryablehttp.Client {
	c := retryablehttp.NewClient()
	c.Logger = nil
	c.RetryWaitMin, c.RetryWaitMax = time.Millisecond, 10*time.Millisecond
	return c
}

func wantMade(t *testing.T, resp *http.Response, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 201 || string(b) != "made of tea" || resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("answer is %d %q, %v, fields %v", resp.StatusCode, b, err, resp.Header)
	}
}

// The retrying client inside: one RoundTrip is one operation.
func TestRetryable_Inside(t *testing.T) {
	s := serve(t, made, 500, 0, 502)
	rc := retryable()
	c := &http.Client{Transport: &idemhttp.Transport{Base: &retryablehttp.RoundTripper{Client: rc}}}
	resp, err := c.Post(s.URL, "text/plain", strings.NewReader("tea"))
	wantMade(t, resp, err)
	s.wantOnce(t, 4)
}

// The retrying client outside: the context carries the key.
func TestRetryable_Outside(t *testing.T) {
	s := serve(t, made, 500, 0, 502)
	rc := retryable()
	rc.HTTPClient.Transport = &idemhttp.Transport{Base: rc.HTTPClient.Transport}
	req, err := retryablehttp.NewRequestWithContext(idemhttp.WithKey(t.Context(), idemhttp.NewKey()), "POST", s.URL, strings.NewReader("tea"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rc.Do(req)
	wantMade(t, resp, err)
	s.wantOnce(t, 4)
}

// A key in flight tells the client to come back: it does, and gets the answer.
func TestRetryable_RetriesWhileInFlight(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-leave
		made(w, r)
	})
	key := idemhttp.NewKey()
	first := make(chan struct{})
	go func() {
		defer close(first)
		req, err := http.NewRequest("POST", s.URL, strings.NewReader("tea"))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	}()
	<-entered
	rc := retryable()
	rc.CheckRetry = idemRetry
	refused := 0
	rc.ResponseLogHook = func(_ retryablehttp.Logger, resp *http.Response) {
		if resp.StatusCode == 409 {
			if refused++; refused == 1 {
				close(leave)
			}
		}
	}
	req, err := retryablehttp.NewRequest("POST", s.URL, strings.NewReader("tea"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := rc.Do(req)
	wantMade(t, resp, err)
	<-first
	if refused == 0 || s.runs.Load() != 1 {
		t.Errorf("refused %d times, ran %d times", refused, s.runs.Load())
	}
}

// stripeServer answers as Stripe's API does.
func stripeServer(t *testing.T, lose ...int) (*server, *stripe.Client) {
	t.Helper()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"id": "cus_1", "object": "customer", "name": r.PostForm.Get("name")})
	}, lose...)
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: stripe.String(s.URL), MaxNetworkRetries: stripe.Int64(5), HTTPClient: s.Client(),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull}, EnableTelemetry: stripe.Bool(false),
	})
	return s, stripe.NewClient("sk_test_1", stripe.WithBackends(&stripe.Backends{API: backend, Connect: backend, Uploads: backend, MeterEvents: backend}))
}

// stripe-go makes its own keys, and retries 409, 5xx and lost connections.
func TestStripe(t *testing.T) {
	s, c := stripeServer(t, 500, 0, 409)
	customer, err := c.V1Customers.Create(t.Context(), &stripe.CustomerCreateParams{Name: stripe.String("Ada")})
	if err != nil {
		t.Fatal(err)
	}
	if customer.ID != "cus_1" || customer.Name != "Ada" || customer.LastResponse.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("customer %+v, fields %v", customer, customer.LastResponse.Header)
	}
	s.wantOnce(t, 4)
	// Its next operation has another key.
	if _, err := c.V1Customers.Create(t.Context(), &stripe.CustomerCreateParams{Name: stripe.String("Ada")}); err != nil {
		t.Fatal(err)
	}
	if s.runs.Load() != 2 || s.keys[4] == s.keys[0] {
		t.Errorf("the second operation ran %d times, keys %q", s.runs.Load()-1, s.keys)
	}
}

// A key of the caller's, used for something else, is refused.
func TestStripe_Conflict(t *testing.T) {
	_, c := stripeServer(t)
	create := func(name string) error {
		p := &stripe.CustomerCreateParams{Name: stripe.String(name)}
		p.SetIdempotencyKey("mine")
		_, err := c.V1Customers.Create(t.Context(), p)
		return err
	}
	if err := create("Ada"); err != nil {
		t.Fatal(err)
	}
	if err := create("Bob"); err == nil {
		t.Error("another request got an answer with the same key")
	}
	if err := create("Ada"); err != nil {
		t.Error(err)
	}
}

// curl retries what is lost, with the key it was given.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		if os.Getenv("IDEM_REQUIRE_ALL") == "1" {
			t.Fatalf("%v, and IDEM_REQUIRE_ALL is 1", err)
		}
		t.Skipf("curl is not installed: %v", err)
	}
	for name, args := range map[string][]string{
		"bare":   {"-H", "Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324"},
		"quoted": {"-H", `Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, made, 500, 503)
			args := append([]string{"-sS", "-i", "--retry", "5", "--retry-delay", "1", "--data-binary", "tea"}, args...)
			out, err := exec.CommandContext(t.Context(), curl, append(args, s.URL)...).CombinedOutput()
			if err != nil {
				t.Fatalf("curl: %v\n%s", err, out)
			}
			if got := string(out); !strings.Contains(strings.ToLower(got), "idempotent-replayed: true") || !strings.HasSuffix(got, "made of tea") {
				t.Errorf("curl printed %s", got)
			}
			s.wantOnce(t, 3)
		})
	}
	// HTTP/2: two commands, one operation.
	two := serveH2C(t, made)
	for i := range 2 {
		out, err := exec.CommandContext(t.Context(), curl, "-sS", "-i", "--http2-prior-knowledge", "-H", "idempotency-key: k", "-d", "tea", two.URL).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "HTTP/2 201") || strings.Contains(string(out), "idempotent-replayed: true") != (i == 1) {
			t.Errorf("curl printed %s, %v", out, err)
		}
	}
	two.wantOnce(t, 2)
	// A problem is shown as it is.
	s := serve(t, made)
	out, err := exec.CommandContext(t.Context(), curl, "-sS", "-d", "tea", s.URL).CombinedOutput()
	var p idemhttp.Problem
	if err != nil || json.Unmarshal(out, &p) != nil || p.Code != idemhttp.CodeKeyMissing {
		t.Errorf("curl printed %s, %v", out, err)
	}
}

// serveH2C is serve with HTTP/2 in the clear.
func serveH2C(t *testing.T, h http.HandlerFunc, lose ...int) *server {
	t.Helper()
	s := serve(t, h, lose...)
	plain := s.Server
	s.Server = httptest.NewUnstartedServer(plain.Config.Handler)
	s.Server.Config.Protocols = new(http.Protocols)
	s.Server.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Server.Start()
	t.Cleanup(s.Server.Close)
	return s
}

// idemRetry is a policy that acts on the two booleans of a problem.
func idemRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if err == nil && resp.Header.Get("Content-Type") == "application/problem+json" {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return false, err
		}
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(b))
		var p idemhttp.Problem
		if err := json.Unmarshal(b, &p); err == nil {
			return p.RetrySameKey, nil
		}
	}
	return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
}
