package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/redistest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestOrders starts the built program on every driver, sends duplicates, kills it
// in the middle of a request, starts it again, and counts rows.
func TestOrders(t *testing.T) {
	bin := build(t)
	for _, tt := range []struct {
		driver string
		dsn    func(t *testing.T) string
		// written says that a business row is there while its outcome is not.
		written bool
	}{
		{"sqlite", func(t *testing.T) string { return filepath.Join(t.TempDir(), "orders.db") }, false},
		{"bolt", func(t *testing.T) string { return filepath.Join(t.TempDir(), "orders.db") }, false},
		{"postgres", func(t *testing.T) string { return pgtest.Shared(t).Database(t).DSN() }, false},
		{"redis", func(t *testing.T) string { return "redis://" + redistest.Addr(t) }, true},
	} {
		t.Run(tt.driver, func(t *testing.T) {
			args := []string{"-driver", tt.driver, "-dsn", tt.dsn(t)}
			p := start(t, bin, args...)
			duplicates(t, p)
			tenants(t, p)
			refusals(t, p)

			crash := newOrder()
			crash.pause = time.Hour
			hung := make(chan error, 1)
			go func() {
				_, err := crash.post(p.url)
				hung <- err
			}()
			p.printed(t, "the order of "+crash.item)
			p.kill(t)
			if err := <-hung; err == nil {
				t.Error("a request was answered by a process that was killed in the middle of it")
			}

			p = start(t, bin, args...)
			if got, want := count(t, p, crash.item), map[bool]int{true: 1}[tt.written]; got != want {
				t.Errorf("after the crash, before the repeat: %d rows, want %d", got, want)
			}
			crash.pause = 0
			first := crash.insist(t, p)
			again := crash.insist(t, p)
			if first.replayed || !again.replayed || first.body != again.body {
				t.Errorf("the repeat got %+v, and the next one %+v", first, again)
			}
			if n := count(t, p, crash.item); n != 1 {
				t.Errorf("after the repeat: %d rows, want 1", n)
			}
			p = refunds(t, p, func() *process { return start(t, bin, args...) })
			shutdown(t, p)
		})
	}
}

// duplicates sends 64 equal requests at the same moment.
func duplicates(t *testing.T, p *process) {
	t.Helper()
	const n = 64
	order := newOrder()
	replies := make([]reply, n)
	errs := make([]error, n)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			replies[i], errs[i] = order.post(p.url)
		})
	}
	close(begin)
	wg.Wait()
	first := 0
	for i, r := range replies {
		if errs[i] != nil || r.status != http.StatusCreated || r.body != replies[0].body {
			t.Fatalf("request %d: %+v, %v, want what request 0 got: %+v", i, r, errs[i], replies[0])
		}
		if !r.replayed {
			first++
		}
	}
	if rows := count(t, p, order.item); first != 1 || rows != 1 {
		t.Errorf("%d equal requests: %d were not replays, %d rows; want 1 and 1", n, first, rows)
	}
	other := order
	other.quantity++
	if r, err := other.post(p.url); err != nil || r.status != http.StatusUnprocessableEntity || r.code != "idempotency_key_conflict" {
		t.Errorf("another order with the key: %+v, %v, want 422", r, err)
	}
}

// tenants: the keys of two tenants are two keys.
func tenants(t *testing.T, p *process) {
	t.Helper()
	order := newOrder()
	for _, tenant := range []string{"a", "b"} {
		order.tenant = tenant
		if r, err := order.post(p.url); err != nil || r.status != http.StatusCreated || r.replayed {
			t.Errorf("tenant %s: %+v, %v, want an order of its own", tenant, r, err)
		}
	}
	if n := count(t, p, order.item); n != 2 {
		t.Errorf("two tenants with one key: %d rows, want 2", n)
	}
}

// refusals: what cannot be an order gives its key up, and any other refusal keeps it.
func refusals(t *testing.T, p *process) {
	t.Helper()
	order := newOrder()
	order.quantity = 0
	if r, err := order.post(p.url); err != nil || r.status != http.StatusBadRequest || r.code != "invalid_order" {
		t.Errorf("an order of nothing: %+v, %v, want 400", r, err)
	}
	order.quantity = 101
	for _, replayed := range []bool{false, true} {
		r, err := order.post(p.url)
		if err != nil || r.status != http.StatusUnprocessableEntity || r.code != "order_too_large" || r.replayed != replayed {
			t.Errorf("too large an order: %+v, %v, want 422, replayed: %t", r, err, replayed)
		}
	}
	if n := count(t, p, order.item); n != 0 {
		t.Errorf("orders that were refused: %d rows, want 0", n)
	}
	order.key = ""
	if r, err := order.post(p.url); err != nil || r.status != http.StatusBadRequest {
		t.Errorf("an order without a key: %+v, %v, want 400", r, err)
	}
}

// shutdown ends the process while it works on a request: the request ends first.
func shutdown(t *testing.T, p *process) {
	t.Helper()
	order := newOrder()
	order.pause = time.Second
	done := make(chan error, 1)
	var r reply
	go func() {
		var err error
		r, err = order.post(p.url)
		done <- err
	}()
	p.printed(t, "the order of "+order.item)
	p.terminate(t)
	if err := <-done; err != nil || r.status != http.StatusCreated {
		t.Errorf("a request in progress at the shutdown: %+v, %v, want 201", r, err)
	}
	if err := p.wait(t); err != nil {
		t.Errorf("the process ended with %v", err)
	}
}

// order is one request, as a client would repeat it.
type order struct {
	key, tenant, item string
	quantity          int
	pause             time.Duration
}

func newOrder() order { return order{key: rand.Text(), tenant: "t", item: rand.Text(), quantity: 2} }

type reply struct {
	status     int
	code       string // of a refusal
	replayed   bool
	retryAfter time.Duration
	location   string
	body       string
}

// client opens a connection for each request: one that was idle when the server
// was killed is never used for the next server.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

// send sends a request with header fields given as name, value, name, value.
func send(method, url, body string, header ...string) (reply, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	r := reply{
		status: res.StatusCode, replayed: res.Header.Get("Idempotent-Replayed") == "true",
		location: res.Header.Get("Location"), body: string(b),
	}
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	r.retryAfter = time.Duration(seconds) * time.Second
	var problem struct{ Code string }
	if res.Header.Get("Content-Type") == "application/problem+json" && json.Unmarshal(b, &problem) == nil {
		r.code = problem.Code
	}
	return r, err
}

func (o order) post(url string) (reply, error) {
	body := fmt.Sprintf(`{"item":%q,"quantity":%d}`, o.item, o.quantity)
	return send("POST", url+"/orders", body,
		"Idempotency-Key", o.key, "Demo-Tenant", o.tenant, "Demo-Pause", o.pause.String())
}

// insist repeats a request, as told by Retry-After, until there is an order.
func (o order) insist(t *testing.T, p *process) reply {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		r, err := o.post(p.url)
		switch {
		case err != nil:
			t.Fatal(err)
		case r.status == http.StatusCreated:
			return r
		case r.retryAfter == 0 || time.Now().After(deadline):
			t.Fatalf("repeating got %+v", r)
		}
		time.Sleep(r.retryAfter)
	}
}

func count(t *testing.T, p *process, item string) int {
	t.Helper()
	res, err := client.Get(p.url + "/orders?item=" + url.QueryEscape(item))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got struct{ Count int }
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET: status %d, %v", res.StatusCode, err)
	}
	return got.Count
}
