package conformancetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

func TestJudge(t *testing.T) {
	broken := errors.New("broken")
	stuck := errors.Join(errStuck, broken)
	for _, c := range []struct {
		name    string
		err     error
		skipped bool
		want    string
	}{
		{"passes", nil, false, statusPass},
		{"fails", broken, false, statusFail},
		{"fails, and is skipped", broken, true, statusSkip},
		{"passes, and is skipped", nil, true, statusFail},
		{"hangs", stuck, false, statusFail},
		{"hangs, and is skipped", stuck, true, statusFail},
	} {
		status, detail := judge(c.err, "the reason", c.skipped)
		if status != c.want {
			t.Errorf("a rule that %s is %q, want %q", c.name, status, c.want)
		}
		if (detail == "") != (status == statusPass) {
			t.Errorf("a rule that %s has the detail %q", c.name, detail)
		}
	}
}

func TestCheckSurvivesTheRule(t *testing.T) {
	s := suiteFor(goodHooks(), rules)
	s.limit = 20 * time.Millisecond
	forever := make(chan struct{})
	defer close(forever)
	for _, c := range []struct {
		name  string
		check func(ctx context.Context, e *env) error
		want  string
	}{
		{"panics", func(context.Context, *env) error { panic("boom") }, "panic: boom"},
		{"ends its goroutine", func(context.Context, *env) error { runtime.Goexit(); return nil }, "ended its goroutine"},
		{"hangs", func(context.Context, *env) error { <-forever; return nil }, "goroutine "},
		{"waits for its context", func(ctx context.Context, _ *env) error { <-ctx.Done(); return ctx.Err() }, "deadline exceeded"},
	} {
		err := s.check(t.Context(), rule{id: "test/" + c.name, check: c.check})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a rule that %s: got error %.200v, want one with %q", c.name, err, c.want)
		}
		if got := errors.Is(err, errStuck); got != (c.name == "hangs") {
			t.Errorf("a rule that %s: stuck is %t", c.name, got)
		}
	}
}

// A failure of the random rules names the seed, and with it fails alike.
func TestRandomFailureCanBeRerun(t *testing.T) {
	h := goodHooks()
	h.claim = claimThen(func(r *driver.Record, _ driver.ClaimParams, _ bool) {
		if r.Attempt == 2 {
			r.Attempt = 33
		}
	})
	var messages []string
	for range 2 {
		s := suiteFor(h, rules)
		s.seed = 4711
		i := slices.IndexFunc(s.rules, func(r rule) bool { return r.id == "random/model" })
		err := s.check(t.Context(), s.rules[i])
		if err == nil {
			t.Fatal("the fault was not found")
		}
		step, _, _ := strings.Cut(err.Error(), ":")
		messages = append(messages, step)
		for _, want := range []string{"-conformance.seed=4711", "what happened to key-", "Claim token="} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the failure lacks %q:\n%v", want, err)
			}
		}
	}
	if messages[0] != messages[1] {
		t.Errorf("one seed failed at %s and at %s", messages[0], messages[1])
	}
}

// justDriver hides the optional capabilities of a driver.
type justDriver struct{ driver.Driver }

func (justDriver) Guarantees() driver.Guarantees {
	return driver.Guarantees{
		Backend: "bare", DurableClaim: driver.DurableNever, Clock: driver.HostClock, Sharing: driver.SharedByGoroutines,
		TxDuplicate: driver.TxDuplicateNone, Failover: "everything", WhenFull: "it stops",
	}
}

func TestReport(t *testing.T) {
	old := *reportFlag
	defer func() { *reportFlag = old }()
	*reportFlag = filepath.Join(t.TempDir(), "report")
	t.Run("bare", func(t *testing.T) {
		Run(t, Harness{
			New:    func(testing.TB) driver.Driver { return justDriver{&handle{newStore(), goodHooks()}} },
			Config: "plain",
		})
	})
	t.Run("transactions", func(t *testing.T) {
		h := goodHooks()
		h.discards = false
		RunTx(t, TxHarness[*mapTx]{
			New: func(testing.TB) driver.TxDriver[*mapTx] { return &handle{newStore(), h} },
			Second: func(_ testing.TB, d driver.TxDriver[*mapTx]) driver.TxDriver[*mapTx] {
				return &handle{d.(*handle).store, h}
			},
			Reopen: func(_ testing.TB, d driver.TxDriver[*mapTx]) driver.TxDriver[*mapTx] {
				return &handle{d.(*handle).store, h}
			},
			Insert: insertRow,
			Count:  countRows,
			Skip:   map[string]string{"tx/discard": "known", "tx/then-discard": "known"},
		})
	})
	t.Run("batches", func(t *testing.T) {
		h := batchHarness
		h.New = func(testing.TB) driver.BatchDriver[mapBatch] { return &handle{newStore(), goodHooks()} }
		h.Second = func(_ testing.TB, d driver.BatchDriver[mapBatch]) driver.BatchDriver[mapBatch] {
			return &handle{d.(*handle).store, goodHooks()}
		}
		RunBatch(t, h)
	})
	b, err := os.ReadFile(*reportFlag)
	if err != nil {
		t.Fatal(err)
	}
	statuses := make(map[string]string)
	stated := make(map[string]bool)
	for l := range bytes.Lines(b) {
		var line reportLine
		if err := json.Unmarshal(l, &line); err != nil {
			t.Fatal(err)
		}
		if line.Guarantees != nil {
			stated[line.Driver+" "+line.Config] = true
			continue
		}
		if line.Promise == "" || (line.Reason == "") != (line.Status == statusPass) {
			t.Errorf("the line lacks a promise, or a reason: %s", l)
		}
		statuses[line.Driver+" "+line.Config+" "+line.Rule] = line.Status
	}
	if !stated["bare plain"] || !stated["map "] {
		t.Errorf("what the drivers state is missing: %v", stated)
	}
	for name, want := range map[string]string{
		"bare plain claim/absent":     statusPass,
		"bare plain list/state":       statusNone,
		"bare plain wait/over":        statusNone,
		"bare plain handles/claim":    statusNone,
		"bare plain reopen/claim":     statusNone,
		"map  tx/commit":              statusPass,
		"map  tx/discard":             statusSkip,
		"map  tx/duplicate-elsewhere": statusPass,
	} {
		if statuses[name] != want {
			t.Errorf("%s is %q in the report, want %q", name, statuses[name], want)
		}
	}
	if want := len(Rules()); len(statuses) != want {
		t.Errorf("the report names %d rules, want all %d", len(statuses), want)
	}
}

func TestDiff(t *testing.T) {
	r := driver.Record{State: driver.StateInFlight, Attempt: 1, LeaseUntil: t0, RetainUntil: t0}
	if d := diff(r, r); d != "" {
		t.Errorf("a record differs from itself: %s", d)
	}
	other := r
	other.Result, other.LeaseUntil, other.Attempt = []byte{}, t0.Add(time.Second), 2
	if got, want := diff(r, other), `Attempt is 1, want 2; Result is none, want ""; LeaseUntil is t0+0s, want t0+1s`; got != want {
		t.Errorf("the difference is\n%s\nwant\n%s", got, want)
	}
	other = r
	other.State, r.State = driver.StateReleased, driver.StateReleased
	other.LeaseUntil = t0.Add(time.Hour) // means nothing in a released record
	if d := diff(r, other); d != "" {
		t.Errorf("released records differ: %s", d)
	}
}
