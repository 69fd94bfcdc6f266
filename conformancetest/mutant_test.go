package conformancetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A mutant is the unbroken driver with one fault, and the rules that must find it.
type mutant struct {
	name  string
	fault func(*hooks)
	rules string // separated by spaces
}

// allMutants is the table, one file an area.
func allMutants() []mutant {
	return slices.Concat(claimMutants, timeMutants, storeMutants, txMutants, batchMutants)
}

func (m mutant) hooks() hooks {
	h := goodHooks()
	m.fault(&h)
	return h
}

// fails returns the promises of the mutant that hold although they must not.
func (m mutant) fails(t *testing.T) (passed []string) {
	h := m.hooks()
	for _, table := range []func() []rule{rules, txRules, batchRules} {
		s := suiteFor(h, table)
		s.limit, s.patience, s.seed = 2*time.Second, 100*time.Millisecond, 1
		for _, r := range s.rules {
			if !slices.Contains(strings.Fields(m.rules), r.id) {
				continue
			}
			if err := s.check(t.Context(), r); err == nil {
				passed = append(passed, r.id)
			} else if strings.Contains(err.Error(), "%!") {
				t.Errorf("%s: the message is malformed: %v", r.id, err)
			}
		}
	}
	return passed
}

// meeting returns a func in which two calls meet: each waits for another one, for
// as long as that may take on a busy machine.
func meeting() func() {
	ch := make(chan struct{})
	return func() {
		select {
		case ch <- struct{}{}:
		case <-ch:
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func TestMutants(t *testing.T) {
	known := make(map[string]bool)
	for _, r := range Rules() {
		known[r.ID] = true
	}
	for _, m := range allMutants() {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			if m.rules != "tx/no-leak" { // which counts the goroutines of the process
				t.Parallel()
			}
			for _, id := range strings.Fields(m.rules) {
				if !known[id] {
					t.Errorf("there is no rule %s", id)
				}
			}
			if passed := m.fails(t); len(passed) > 0 {
				t.Errorf("a driver that %s passes %v", m.name, passed)
			}
		})
	}
}

// A rule that no mutant can fail is not a rule.
func TestEveryRuleCanFail(t *testing.T) {
	failed := make(map[string]bool)
	for _, m := range allMutants() {
		for _, id := range strings.Fields(m.rules) {
			failed[id] = true
		}
	}
	for _, r := range Rules() {
		if !failed[r.ID] {
			t.Errorf("no mutant breaks %s: %s", r.ID, r.Promise)
		}
	}
}

func TestRulesAreWellFormed(t *testing.T) {
	all := Rules()
	if len(all) < 60 {
		t.Errorf("there are %d rules, want at least 60", len(all))
	}
	seen := make(map[string]bool)
	for _, r := range all {
		area, name, ok := strings.Cut(r.ID, "/")
		if !ok || name == "" || r.Area != area {
			t.Errorf("rule %q of area %q is not named area/name", r.ID, r.Area)
		}
		if seen[r.ID] {
			t.Errorf("rule %s stands twice in the table", r.ID)
		}
		seen[r.ID] = true
		if r.Promise == "" || strings.ContainsAny(r.Promise, "\n|") || strings.HasSuffix(r.Promise, ".") {
			t.Errorf("rule %s: the promise %q is not one line without a full stop", r.ID, r.Promise)
		}
	}
	if fmt.Sprint(all) != fmt.Sprint(Rules()) {
		t.Error("two calls of Rules differ")
	}
}
