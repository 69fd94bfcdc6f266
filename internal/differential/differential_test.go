package differential

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/pgtest"
)

// So many sequences take seconds; -rapid.checks asks for more.
func init() { _ = flag.Set("rapid.checks", "50") }

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience is for one sequence.
const patience = time.Minute

// All drivers, and the model, answer a random sequence of verbs alike: records field by
// field, errors by their kind, purges by their number, business rows by what was
// committed. Rapid prints what reruns a failure, and the shortest sequence that fails.
//
// Documented differences are taken out: which fields mean nothing in a state, the key
// of a record, the order of lists and whether they have results, what a record that is
// absent or a tombstone still holds, and which due records a batch of Purge takes.
func TestDrivers(t *testing.T) {
	all := stores(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		var steps []step
		for range 5 {
			steps = append(steps, some.Draw(t, "steps")...)
		}
		calls := plan(steps)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		failures := make([]string, len(all))
		var wg sync.WaitGroup
		for i, s := range all {
			wg.Go(func() { failures[i] = run(ctx, s, n, calls) })
		}
		wg.Wait()
		if all := strings.Join(failures, ""); all != "" {
			t.Fatal(all)
		}
	})
}

// plan adds, to the calls of the steps, a look at what is left: now, and whenever
// something ends.
func plan(steps []step) []call {
	m := &model{now: t0}
	var calls []call
	for _, s := range steps {
		calls = append(calls, m.plan(s))
	}
	for _, later := range []time.Duration{0, lease, retention, keep} {
		m.now = m.now.Add(later)
		for i := range keys {
			calls = append(calls, m.get(i, m.now))
		}
		for _, s := range states {
			calls = append(calls, m.list(step{State: s, Limit: keys}))
		}
	}
	for i := range keys {
		want := fmt.Sprint(m.rows[i], " rows")
		calls = append(calls, call{text: "rows of " + key(i).ID, want: want, ask: func(ctx context.Context, d session) string {
			if d.tx == nil {
				return want
			}
			n, err := d.tx.count(ctx, key(i).ID)
			if err != nil {
				return kind(err)
			}
			return fmt.Sprint(n, " rows")
		}})
	}
	return calls
}

// run puts the calls to one driver, and returns where it first differs from the model.
func run(ctx context.Context, s store, n int, calls []call) string {
	d, err := s.empty(ctx, n)
	if err != nil {
		return fmt.Sprintf("%s: emptying the store: %v\n", s.name, err)
	}
	var b strings.Builder
	for _, c := range calls {
		got := c.ask(ctx, d)
		fmt.Fprintf(&b, "\n\t%s: %s", c.text, got)
		if got != c.want {
			return fmt.Sprintf("%s differs from the model\n\tgot  %s\n\twant %s\nafter:%s\n", s.name, got, c.want, b.String())
		}
	}
	return ""
}

// answer renders a record as a caller sees it. Of a tombstone, Get may return the
// result that Purge would have dropped, and of an absent key anything.
func answer(r driver.Record, k driver.Key, read bool, err error) string {
	if err != nil {
		return kind(err)
	}
	if r.Key != (driver.Key{}) && r.Key != k {
		return fmt.Sprintf("the record of %v", r.Key)
	}
	now := r.Now.Sub(t0)
	state := r.StateAt(r.Now)
	if state == driver.StateAbsent && read {
		return fmt.Sprintf("absent at %v", now)
	}
	if state == driver.StateExpired {
		r.Result = nil
	}
	result := "none"
	if r.Result != nil {
		result = fmt.Sprintf("%q", r.Result)
	}
	s := fmt.Sprintf("%v (stored %v) op=%s fp=%q summary=%s token=%s fence=%d attempt=%d hold=%t note=%q result=%s created=%v retain=%v now=%v",
		state, r.State, r.Operation, r.Fingerprint, r.Summary, brief(r.Token), r.Fence, r.Attempt, r.Hold, r.Note, result,
		r.CreatedAt.Sub(t0), r.RetainUntil.Sub(t0), now)
	switch r.State {
	case driver.StateInFlight:
		s += fmt.Sprintf(" lease=%v", r.LeaseUntil.Sub(t0))
	case driver.StateComplete:
		s += fmt.Sprintf(" completed=%v grace=%v", r.CompletedAt.Sub(t0), r.GraceUntil.Sub(t0))
	}
	return s
}

func brief(t driver.Token) string { return strings.TrimLeft(t.String(), "0") }

var sentinels = []error{
	context.Canceled, context.DeadlineExceeded, driver.ErrInvalidKey, driver.ErrInvalidParams, driver.ErrNotHolder, driver.ErrRetryable,
	driver.ErrOutcomeUnknown, driver.ErrUnsafeConfig, driver.ErrNewerVersion, driver.ErrForeignRecord,
}

// kind names every sentinel that an error matches.
func kind(err error) string {
	if err == nil {
		return "ok"
	}
	var all []string
	for _, s := range sentinels {
		if errors.Is(err, s) {
			all = append(all, s.Error())
		}
	}
	if all == nil {
		return "another error: " + err.Error()
	}
	return strings.Join(all, " and ")
}
