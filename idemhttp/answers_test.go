package idemhttp_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// The tests of this file are the rows of the contract's table of answers.

func TestAnswers_FirstRun(t *testing.T) {
	// The answer is sent only after it is durable: the store sees it complete before
	// the client sees anything.
	drv := newFaulty()
	completing, complete := make(chan struct{}), make(chan struct{})
	hold := func(context.Context) error {
		close(completing)
		<-complete
		return nil
	}
	drv.complete.Store(&hold)
	e := serve(t, drv, text(201, "made"))
	first := e.async("k", "b")
	receive(t, completing, "the completion")
	select {
	case a := <-first:
		t.Fatalf("answered %v before it was durable", a)
	case <-time.After(50 * time.Millisecond):
	}
	close(complete)
	receive(t, first, "the answer").want(t, 201, "made", false)
}

func TestAnswers_Repeat(t *testing.T) {
	e := serve(t, memory.New(), text(201, "made"))
	e.post("k", "b").want(t, 201, "made", false)
	for range 3 {
		e.post("k", "b").want(t, 201, "made", true)
	}
	e.wantRuns(1)

	e = serve(t, memory.New(), text(201, "made"), func(c *idemhttp.Config) { c.ReplayedHeader = "X-Replay"; c.Header = "X-Key" })
	e.post("", "b", header("X-Key", "k"))
	if a := e.post("", "b", header("X-Key", "k")); a.header.Get("X-Replay") != "true" || a.replayed() {
		t.Errorf("the fields of a replay are %v", a.header)
	}
}

func TestAnswers_InFlightConflict(t *testing.T) {
	g := newGate()
	e := serve(t, memory.New(), g.handler(text(200, "ran")), func(c *idemhttp.Config) { c.Operation.Lease = 20 * time.Second })
	first := e.async("k", "b")
	receive(t, g.entered, "the handler")
	a := e.post("k", "b")
	a.wantProblem(t, 409, idemhttp.CodeInFlight)
	if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 13 || n > 20 {
		t.Errorf("Retry-After is %q, want what is left of a lease of 20 s", a.header.Get("Retry-After"))
	}
	close(g.leave)
	receive(t, first, "the answer").want(t, 200, "ran", false)
	e.wantRuns(1)
}

func TestAnswers_RetryAfterIsAtLeastOne(t *testing.T) {
	g := newGate()
	e := serve(t, memory.New(), g.handler(text(200, "ran")), func(c *idemhttp.Config) { c.Operation.Lease = 300 * time.Millisecond })
	first := e.async("k", "b")
	receive(t, g.entered, "the handler")
	if a := e.post("k", "b"); a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q, want 1", a.header.Get("Retry-After"))
	}
	close(g.leave)
	receive(t, first, "the answer")
}

// waiting is an endpoint whose first request is in its handler.
func waiting(t *testing.T, change ...func(*idemhttp.Config)) (e *env, g *gate, first <-chan answer) {
	g = newGate()
	e = serve(t, memory.New(), g.handler(text(200, "ran")), change...)
	first = e.async("k", "b")
	receive(t, g.entered, "the handler")
	return e, g, first
}

func TestAnswers_InFlightWait(t *testing.T) {
	wait := func(c *idemhttp.Config) { c.InFlight = idemhttp.Wait }
	for name, tt := range map[string]struct {
		change  func(*idemhttp.Config)
		prefer  []string
		applied string
	}{
		"mode":                {wait, nil, ""},
		"prefer":              {func(*idemhttp.Config) {}, []string{"wait=9"}, "wait=9"},
		"prefer, bounded":     {func(*idemhttp.Config) {}, []string{"wait=999"}, "wait=10"},
		"prefer, and async":   {func(*idemhttp.Config) {}, []string{"respond-async", "wait=9"}, "wait=9"},
		"prefer, two in one":  {func(*idemhttp.Config) {}, []string{`handling=lenient; x="a,wait=0", WAIT = "9"`}, "wait=9"},
		"mode, async ignored": {wait, []string{"respond-async=1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, g, first := waiting(t, tt.change)
			var opts []option
			for _, p := range tt.prefer {
				opts = append(opts, header("Prefer", p))
			}
			repeat := e.async("k", "b", opts...)
			select {
			case a := <-repeat:
				t.Fatalf("answered %v while the first is being worked on", a)
			case <-time.After(20 * time.Millisecond):
			}
			close(g.leave)
			a := receive(t, repeat, "the repeat")
			a.want(t, 200, "ran", true)
			if got := a.header.Get("Preference-Applied"); got != tt.applied {
				t.Errorf("Preference-Applied is %q, want %q", got, tt.applied)
			}
			own := receive(t, first, "the first")
			own.want(t, 200, "ran", false)
			e.wantRuns(1)
		})
	}
}

func TestAnswers_InFlightWaitEnds(t *testing.T) {
	e, g, first := waiting(t, func(c *idemhttp.Config) { c.InFlight, c.MaxWait = idemhttp.Wait, 30*time.Millisecond })
	e.post("k", "b").wantProblem(t, 409, idemhttp.CodeInFlight)
	a := e.post("k", "b", header("Prefer", "wait=0"))
	a.wantProblem(t, 409, idemhttp.CodeInFlight)
	if got := a.header.Get("Preference-Applied"); got != "wait=0" {
		t.Errorf("Preference-Applied is %q, want wait=0", got)
	}
	close(g.leave)
	receive(t, first, "the answer")
	e.wantRuns(1)
}

func TestAnswers_InFlightAccepted(t *testing.T) {
	reference := func(c *idemhttp.Config) {
		c.Reference = func(r *http.Request, key idem.Key) string { return "/orders/" + key.ID }
	}
	for name, tt := range map[string]struct {
		change  func(*idemhttp.Config)
		prefer  string
		applied string
	}{
		"mode":   {func(c *idemhttp.Config) { c.InFlight = idemhttp.Accepted; reference(c) }, "", ""},
		"prefer": {reference, "respond-async", "respond-async"},
		"both":   {func(c *idemhttp.Config) { c.MaxWait = time.Second; reference(c) }, "respond-async, wait=0", "wait=0, respond-async"},
	} {
		t.Run(name, func(t *testing.T) {
			e, g, first := waiting(t, tt.change)
			a := e.post("k", "b", header("Prefer", tt.prefer))
			a.wantProblem(t, 202, idemhttp.CodeInFlight)
			if a.header.Get("Retry-After") == "" || a.header.Get("Preference-Applied") != tt.applied {
				t.Errorf("fields are %v, want Preference-Applied %q", a.header, tt.applied)
			}
			if a.header.Get("Location") != "/orders/k" || a.problem.Reference != "/orders/k" {
				t.Errorf("reference is %q and %q, want /orders/k", a.header.Get("Location"), a.problem.Reference)
			}
			close(g.leave)
			receive(t, first, "the answer")
			e.post("k", "b", header("Prefer", tt.prefer)).want(t, 200, "ran", true)
			e.wantRuns(1)
		})
	}
}

func TestAnswers_OtherRequest(t *testing.T) {
	drv := memory.New()
	e := serve(t, drv, text(200, "ran"))
	begin := time.Now().Add(-time.Second)
	e.post("k", "a secret").want(t, 200, "ran", false)
	a := e.post("k", "another", path("/refunds"))
	a.wantProblem(t, 422, idemhttp.CodeConflict)
	s := a.problem.StoredRequest
	if s == nil || s.Method != "POST" || s.Path != "/orders" || len(s.Fingerprint) != 16 || s.Operation != "orders.create" ||
		s.FirstSeen.Before(begin) || s.FirstSeen.After(time.Now().Add(time.Second)) {
		t.Errorf("the stored request is described as %+v", s)
	}
	if strings.Contains(a.body, "secret") {
		t.Errorf("the stored body was shown: %s", a.body)
	}
	// The same digest tells whether a request is the stored one.
	if b := e.post("k", "more", path("/refunds")); b.problem.StoredRequest.Fingerprint != s.Fingerprint {
		t.Error("the digest of one stored request differs")
	}

	// Another operation, and another recipe.
	other := serve(t, drv, text(200, "ran"), func(c *idemhttp.Config) { c.Operation.Name = "refunds" })
	if a := other.post("k", "a secret"); a.problem.Code != idemhttp.CodeConflict || !strings.Contains(a.problem.Detail, "endpoint") {
		t.Errorf("another operation is answered %+v", a.problem)
	}
	other = serve(t, drv, text(200, "ran"), func(c *idemhttp.Config) { c.Fingerprint = idemhttp.None })
	if a := other.post("k", "a secret"); a.problem.Code != idemhttp.CodeConflict || !strings.Contains(a.problem.Detail, "compared") {
		t.Errorf("another recipe is answered %+v", a.problem)
	}

	// A summary of the application's own.
	own := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) {
		c.Fingerprint = func(r *http.Request, body []byte) (idem.Fingerprint, error) {
			return idem.NewFingerprint("own.v1", body).WithSummary("an order of 3 items"), nil
		}
	})
	own.post("k", "1")
	if s := own.post("k", "2").problem.StoredRequest; s == nil || s.Summary != "an order of 3 items" || s.Path != "" {
		t.Errorf("the stored request is described as %+v", s)
	}
}

func TestAnswers_OtherRequestInFlight(t *testing.T) {
	e, g, first := waiting(t)
	e.post("k", "other").wantProblem(t, 422, idemhttp.CodeConflict)
	close(g.leave)
	receive(t, first, "the answer")
}

func TestAnswers_LongPathIsCut(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"))
	long := "/" + strings.Repeat("p", 3000)
	e.post("k", "a", path(long))
	s := e.post("k", "b").problem.StoredRequest
	if s == nil || s.Method != "POST" || len(s.Fingerprint) != 16 || !strings.HasPrefix(long, s.Path) || len(s.Path) < 900 {
		t.Errorf("the stored request is described as %+v", s)
	}
}

func TestAnswers_OutcomeUnknown(t *testing.T) {
	e := serve(t, memory.New(), func(http.ResponseWriter, *http.Request) { panic("lost") }, func(c *idemhttp.Config) { c.Operation.Policy = idem.Hold })
	if a := <-e.async("k", "b"); a.err == nil {
		t.Fatalf("a panic was answered with %v", a)
	}
	e.post("k", "b").wantProblem(t, 409, idemhttp.CodeUnknown)
	e.wantRuns(1)
	// A person finds out what the answer should have been.
	resolved := idemhttp.Response{Status: 201, Header: http.Header{"Location": {"/orders/7"}}, Body: []byte("made")}
	if err := e.guard.Operation().Resolve(t.Context(), idem.Key{Scope: "tenant-", ID: "k"}, "seen at the provider", resolved, nil); err != nil {
		t.Fatal(err)
	}
	a := e.post("k", "b")
	a.want(t, 201, "made", true)
	if a.header.Get("Location") != "/orders/7" {
		t.Errorf("fields are %v", a.header)
	}
}

func TestAnswers_ResolvedWithAnError(t *testing.T) {
	e := serve(t, memory.New(), func(http.ResponseWriter, *http.Request) { panic("lost") }, func(c *idemhttp.Config) { c.Operation.Policy = idem.Hold })
	<-e.async("k", "b")
	err := e.guard.Operation().Resolve(t.Context(), idem.Key{Scope: "tenant-", ID: "k"}, "ask", idemhttp.Response{}, idem.Final(errors.New("the provider declined")))
	if err != nil {
		t.Fatal(err)
	}
	a := e.post("k", "b")
	a.wantProblem(t, 409, idemhttp.CodeFailed)
	if a.problem.Detail != "the provider declined" {
		t.Errorf("detail is %q", a.problem.Detail)
	}
}

func TestAnswers_ResultGone(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) {
		c.Operation.Lease, c.Operation.Retention, c.Operation.Grace = time.Millisecond, time.Millisecond, time.Hour
	})
	e.post("k", "b")
	key := idem.Key{Scope: "tenant-", ID: "k"}
	eventually(t, "the result has expired", func() bool {
		found, err := e.guard.Operation().Lookup(t.Context(), key)
		return err == nil && found.State == idem.StateExpired
	})
	e.post("k", "b").wantProblem(t, 410, idemhttp.CodeExpired)
	e.wantRuns(1)
}

func TestAnswers_ResponseTooLarge(t *testing.T) {
	answers := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		n, _ := strconv.Atoi(string(b))
		io.WriteString(w, strings.Repeat("x", n))
	}
	e := serve(t, memory.New(), answers, limits)
	for _, n := range []int{limit - 1, limit, limit + 1, 10 * limit} {
		runs := e.runs.Load()
		size := fmt.Sprint(n)
		e.post(size, size).want(t, 200, strings.Repeat("x", n), false)
		a := e.post(size, size)
		if n <= limit {
			a.want(t, 200, strings.Repeat("x", n), true)
		} else {
			a.wantProblem(t, 409, idemhttp.CodeNotStored)
		}
		e.wantRuns(runs + 1)
	}
	if !strings.Contains(e.log.String(), "not stored") {
		t.Errorf("the log is %q", e.log.String())
	}
}

func TestAnswers_HeaderTooLarge(t *testing.T) {
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("h", 70<<10))
		io.WriteString(w, "ran")
	}, limits)
	e.post("k", "b").want(t, 200, "ran", false)
	e.post("k", "b").wantProblem(t, 409, idemhttp.CodeNotStored)
	e.wantRuns(1)
}

func TestAnswers_StoreUnreachable(t *testing.T) {
	drv := newFaulty()
	e := serve(t, drv, text(200, "ran"))
	drv.claim.Store(fails(2))
	for range 2 {
		a := e.post("k", "b")
		a.wantProblem(t, 503, idemhttp.CodeUnavailable)
		if a.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
		}
		if strings.Contains(a.body, errDown.Error()) {
			t.Errorf("the store's error was sent: %s", a.body)
		}
	}
	e.wantRuns(0)
	e.post("k", "b").want(t, 200, "ran", false)
}

// A store that does not answer is one that cannot be reached.
func TestAnswers_StoreHangs(t *testing.T) {
	drv := newFaulty()
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	drv.claim.Store(&hang)
	short := func(c *idemhttp.Config) { c.StoreTimeout = 20 * time.Millisecond }
	e := serve(t, drv, text(200, "ran"), short)
	e.post("k", "b").wantProblem(t, 503, idemhttp.CodeUnavailable)
	e.wantRuns(0)
	e = serve(t, drv, text(200, "ran"), short, func(c *idemhttp.Config) { c.FailOpen = true })
	e.post("k", "b").want(t, 200, "ran", false)
	e.wantRuns(1)
}

func TestAnswers_Nested(t *testing.T) {
	g, err := idemhttp.New(memory.New(), config())
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t}
	e.start(g, text(200, "ran"), g.Handler) // twice around one handler
	e.post("k", "b").wantProblem(t, 500, idemhttp.CodeNested)
	// It is the answer of the outer handler, stored: a retry does not help.
	if a := e.post("k", "b"); !a.replayed() || a.problem.Code != idemhttp.CodeNested || a.problem.RetrySameKey {
		t.Errorf("the repeat is answered %+v", a)
	}
	e.wantRuns(0)
}

func TestAnswers_WriteProblem(t *testing.T) {
	e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) {
		c.WriteProblem = func(w http.ResponseWriter, r *http.Request, p idemhttp.Problem) {
			http.Error(w, "own "+p.Code+" "+r.URL.Path, p.Status)
		}
	})
	e.post("", "b").want(t, 400, "own idempotency_key_missing /orders\n", false)
}

func TestTx_PanicsWithoutTransaction(t *testing.T) {
	e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
		defer func() { fmt.Fprint(w, recover()) }()
		idemhttp.Tx[*sql.Tx](r.Context())
	})
	e.post("k", "b").want(t, 200, "idemhttp: Tx outside a handler guarded by NewTx", false)
	e = serveTx(t, openSQLite(t), func(w http.ResponseWriter, r *http.Request) {
		defer func() { fmt.Fprint(w, recover()) }()
		idemhttp.Tx[int](r.Context())
	})
	e.post("k", "b").want(t, 200, "idemhttp: Tx of a type that is not the driver's", false)
}
