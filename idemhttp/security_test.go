package idemhttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/fingerprint"
	"github.com/idem-go/idem/idemhttp"
)

var instants = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)

// whole is everything a client sees of an answer, but for the time.
func (a answer) whole() string {
	var b strings.Builder
	fmt.Fprintln(&b, a.status, instants.ReplaceAllString(a.body, "T"))
	for _, name := range slices.Sorted(maps.Keys(a.header)) {
		if name != "Date" && name != "Content-Length" { // an instant has up to six decimals
			fmt.Fprintln(&b, name, a.header[name])
		}
	}
	fmt.Fprintln(&b, a.trailer)
	return b.String()
}

// others are what a key of another tenant can be. Each makes it so, and returns what
// ends it.
var others = map[string]func(e *env, g *gate, key string) func(){
	"complete": func(e *env, _ *gate, key string) func() {
		e.post(key, "body", header("X-Tenant", "victim"))
		return func() {}
	},
	"failed for good": func(e *env, _ *gate, key string) func() {
		e.post(key, "body", header("X-Tenant", "victim"), header("X-Status", "422"))
		return func() {}
	},
	"released": func(e *env, _ *gate, key string) func() {
		e.post(key, "body", header("X-Tenant", "victim"), header("X-Status", "503"))
		return func() {}
	},
	"too large to be stored": func(e *env, _ *gate, key string) func() {
		e.post(key, "body", header("X-Tenant", "victim"), header("X-Large", "1"))
		return func() {}
	},
	"in flight": func(e *env, g *gate, key string) func() {
		ch := e.async(key, "body", header("X-Tenant", "victim"), header("X-Gate", "1"))
		receive(e.t, g.entered, "the victim's handler")
		return func() { g.leave <- struct{}{}; receive(e.t, ch, "the victim's answer") }
	},
	"unknown": func(e *env, _ *gate, key string) func() {
		// The client may send it again by itself, since it has a key.
		do(e.client, e.request(e.t.Context(), key, "body", header("X-Tenant", "victim"), header("X-Panic", "1")))
		return func() {}
	},
}

// A tenant gets, byte for byte, the same answers to a key that another tenant has used as
// to one that nobody has, whatever he sends with it, and so do the verbs of the support
// desk. The time that an answer takes is not looked at.
func TestSecurity_ScopesAreApart(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			h := func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Header.Get("X-Gate") != "":
					g.entered <- struct{}{}
					<-g.leave
				case r.Header.Get("X-Panic") != "":
					panic(http.ErrAbortHandler)
				case r.Header.Get("X-Large") != "":
					fmt.Fprint(w, strings.Repeat("x", 2*limit))
					return
				}
				if s := r.Header.Get("X-Status"); s != "" {
					var status int
					fmt.Sscan(s, &status)
					w.WriteHeader(status)
				}
				fmt.Fprint(w, "the answer to ", r.Header.Get("X-Tenant"))
			}
			e := serve(t, open(t).drv, h, limits, func(c *idemhttp.Config) { c.Operation.Policy = idem.Hold })
			ask := func(key string) string {
				var b strings.Builder
				op, k := e.guard.Operation(), idem.Key{Scope: "tenant-attacker", ID: key}
				found, err := op.Lookup(t.Context(), k)
				fmt.Fprintln(&b, found.State, err)
				fmt.Fprintln(&b, op.Resolve(t.Context(), k, "a guess", idemhttp.Response{Status: 200}, nil))
				fmt.Fprintln(&b, op.Forget(t.Context(), k))
				for _, body := range []string{"body", "another body"} {
					for _, o := range [][]option{nil, {header("Prefer", "wait=1")}, {header("Prefer", "respond-async")}} {
						b.WriteString(e.post(key, body, append(o, header("X-Tenant", "attacker"))...).whole())
					}
				}
				return strings.ReplaceAll(b.String(), key, "KEY")
			}
			want := ask("nobody-s")
			if !strings.Contains(want, "the answer to attacker") || !strings.Contains(want, idemhttp.CodeConflict) {
				t.Fatalf("the attacker's own requests are answered\n%s", want)
			}
			for state, make := range others {
				key := strings.ReplaceAll("victim-s "+state, " ", "-")
				end := make(e, g, key)
				if got := ask(key); got != want {
					t.Errorf("a key that is %s for another tenant is answered\n%s\nwant, as for a key of nobody,\n%s", state, got, want)
				}
				end()
			}
		})
	}
}

// secrets must not stand in a refusal, an error or a log.
var secrets = []string{"key-s3cret", "scope-s3cret", "body-s3cret", "result-s3cret", "header-s3cret", "passw0rd", "s3cret"}

func discreet(t *testing.T, what, text string) {
	t.Helper()
	for _, s := range secrets {
		if strings.Contains(text, s) {
			t.Errorf("%s contains %s: %s", what, s, text)
		}
	}
}

func secretly(e *env, opts ...option) answer {
	return e.post("key-s3cret", "body-s3cret", append([]option{header("X-Secret", "header-s3cret")}, opts...)...)
}

func secretScope(c *idemhttp.Config) {
	c.Scope = func(*http.Request) (string, error) { return "scope-s3cret", nil }
}

// Refusals and what is logged about them hold nothing of a key, a scope, a request, an
// answer or a connection string.
func TestSecurity_RefusalsAreDiscreet(t *testing.T) {
	result := text(200, "result-s3cret")
	for name, tt := range map[string]struct {
		drv    func() driver.Driver
		h      http.HandlerFunc
		change func(*idemhttp.Config)
		run    func(*testing.T, *env) answer
		code   string
		logged bool
	}{
		"conflict": {h: result, code: idemhttp.CodeConflict, run: func(_ *testing.T, e *env) answer {
			secretly(e)
			return e.post("key-s3cret", "another", header("X-Secret", "header-s3cret"))
		}},
		"invalid key": {h: result, code: idemhttp.CodeKeyInvalid, run: func(_ *testing.T, e *env) answer {
			return e.post("key-s3cret é", "body-s3cret")
		}},
		"two keys": {h: result, code: idemhttp.CodeKeyInvalid, run: func(_ *testing.T, e *env) answer {
			return secretly(e, header("Idempotency-Key", "key-s3cret-2"))
		}},
		"refused scope": {h: result, code: idemhttp.CodeScopeRefused, change: func(c *idemhttp.Config) {
			c.Scope = func(*http.Request) (string, error) { return "", errors.New("no such token: scope-s3cret") }
		}},
		"invalid scope": {h: result, code: idemhttp.CodeScopeInvalid, logged: true, change: func(c *idemhttp.Config) {
			c.Scope = func(*http.Request) (string, error) { return "scope-s3cret\n", nil }
		}},
		"too large": {h: result, code: idemhttp.CodeRequestTooLarge, change: func(c *idemhttp.Config) { c.MaxRequest = 3 }},
		"no JSON":   {h: result, code: idemhttp.CodeNoFingerprint, change: func(c *idemhttp.Config) { c.Fingerprint = idemhttp.JSON }},
		"a member twice": {h: result, code: idemhttp.CodeNoFingerprint, change: func(c *idemhttp.Config) { c.Fingerprint = idemhttp.JSON },
			run: func(_ *testing.T, e *env) answer { return e.post("key-s3cret", `{"a":"body-s3cret","a":1}`) }},
		"not stored": {h: result, code: idemhttp.CodeNotStored, logged: true, change: func(c *idemhttp.Config) { c.MaxResponse = 3 },
			run: func(_ *testing.T, e *env) answer { secretly(e); return secretly(e) }},
		"store down": {h: result, code: idemhttp.CodeUnavailable, logged: true, drv: func() driver.Driver {
			f := newFaulty()
			f.claim.Store(fails(1 << 30))
			return f
		}},
		"unreadable": {h: result, code: idemhttp.CodeUnreadable, logged: true, run: func(t *testing.T, e *env) answer {
			return secretly(e)
		}, drv: func() driver.Driver { return unreadable{memory.New()} }},
		"unknown": {h: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, code: idemhttp.CodeUnknown,
			change: func(c *idemhttp.Config) { c.Operation.Policy = idem.Hold },
			run: func(t *testing.T, e *env) answer {
				do(e.client, e.request(t.Context(), "key-s3cret", "body-s3cret"))
				return secretly(e)
			}},
		"postgres unreachable": {h: result, code: idemhttp.CodeUnavailable, logged: true, drv: func() driver.Driver {
			pool, err := pgxpool.New(t.Context(), "postgres://shop:passw0rd@127.0.0.1:1/shop?sslmode=disable&connect_timeout=2")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			return postgres.New(pool)
		}},
		"redis unreachable": {h: result, code: idemhttp.CodeUnavailable, logged: true, drv: func() driver.Driver {
			c := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", Username: "shop", Password: "passw0rd", ContextTimeoutEnabled: true, MaxRetries: -1})
			t.Cleanup(func() { c.Close() })
			return redis.New(c)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			drv := driver.Driver(memory.New())
			if tt.drv != nil {
				drv = tt.drv()
			}
			e := serve(t, drv, tt.h, secretScope, func(c *idemhttp.Config) {
				if tt.change != nil {
					tt.change(c)
				}
			})
			run := tt.run
			if run == nil {
				run = func(_ *testing.T, e *env) answer { return secretly(e) }
			}
			a := run(t, e)
			if a.problem.Code != tt.code {
				t.Errorf("the answer is %d %s, want %s", a.status, a.body, tt.code)
			}
			discreet(t, "the refusal", a.whole())
			log := e.log.String()
			if (log != "") != tt.logged {
				t.Errorf("logged %q, want something: %v", log, tt.logged)
			}
			discreet(t, "the log", log)
		})
	}
}

// unreadable answers with an outcome that nobody can decode.
type unreadable struct{ driver.Driver }

func (u unreadable) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	r, err := u.Driver.Claim(ctx, p)
	if err != nil {
		return r, err
	}
	r, err = r.AfterComplete(driver.CompleteParams{
		HolderParams: driver.HolderParams{Key: p.Key, Token: p.Token, Fence: r.Fence},
		Result:       []byte("\x01\x00result-s3cret"), Retention: time.Hour,
	}, r.Now)
	r.Token[0]++ // somebody else's
	return r, err
}

// The errors of the core, on every store, hold nothing of a key, a request or a result,
// and neither does anything that the process logs.
func TestSecurity_ErrorsAreDiscreet(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			drv := open(t).drv
			k := idem.Key{Scope: "scope-s3cret", ID: "key-s3cret"}
			one := fingerprint.Bytes([]byte("body-s3cret")).WithSummary("summary-s3cret")
			another := fingerprint.Bytes([]byte("another"))
			op := func(name string, p idem.Policy) *idem.Operation[string] {
				o, err := idem.New[string](drv, idem.Config{Name: name, Policy: p})
				if err != nil {
					t.Fatal(err)
				}
				return o
			}
			orders, refunds := op("orders", idem.Rerun), op("refunds", idem.Hold)
			returns := func(v string, err error) func(context.Context, *idem.Run) (string, error) {
				return func(context.Context, *idem.Run) (string, error) { return v, err }
			}
			check := func(what string, got, want error) {
				t.Helper()
				if !errors.Is(got, want) {
					t.Errorf("%s: error %v, want %v", what, got, want)
				}
				if got != nil {
					discreet(t, what, got.Error())
				}
			}
			ctx := t.Context()
			_, err := orders.Do(ctx, k, one, func(ctx context.Context, _ *idem.Run) (string, error) {
				_, err := op("orders", idem.Rerun).Do(context.WithoutCancel(t.Context()), k, one, returns("", nil))
				check("in flight", err, idem.ErrInFlight)
				_, err = orders.Do(ctx, k, one, returns("", nil))
				check("nested", err, idem.ErrNested)
				check("resolved in flight", orders.Resolve(t.Context(), k, "reason", "", nil), idem.ErrInFlight)
				return "result-s3cret", nil
			})
			check("the first", err, nil)
			_, err = orders.Do(ctx, k, another, returns("", nil))
			check("another request", err, idem.ErrMismatch)
			_, err = refunds.Do(ctx, k, one, returns("", nil))
			check("another operation", err, idem.ErrMismatch)
			number, err := idem.New[int](drv, idem.Config{Name: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = number.Do(ctx, k, one, func(context.Context, *idem.Run) (int, error) { return 0, nil })
			check("another type", err, idem.ErrUnreadableResult)
			check("resolved", orders.Resolve(ctx, k, "reason", "", nil), idem.ErrHasOutcome)
			check("forgotten", orders.Forget(ctx, k), nil)
			check("forgotten again", orders.Forget(ctx, k), idem.ErrNotFound)
			_, err = refunds.Do(ctx, k, one, returns("", io.ErrUnexpectedEOF))
			check("fn's own", err, io.ErrUnexpectedEOF)
			_, err = refunds.Do(ctx, k, one, returns("", nil))
			check("unknown", err, idem.ErrUnknown)
			_, err = orders.Do(ctx, idem.Key{Scope: "scope-s3cret", ID: "key-s3cret\n"}, one, returns("", nil))
			check("invalid key", err, idem.ErrInvalidKey)
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, err = orders.Do(ended, k, one, returns("", nil))
			check("ended context", err, context.Canceled)
		})
	}
	if log.Len() > 0 {
		t.Errorf("something was logged: %s", log.String())
	}
}
