package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

// A rule is one row of the table.
type rule struct {
	id      string
	promise string
	needs   need
	check   func(ctx context.Context, e *env) error
}

func (r rule) public() Rule {
	area, _, _ := strings.Cut(r.id, "/")
	return Rule{ID: r.id, Area: area, Promise: r.promise}
}

// need is what a rule needs of the harness or the driver to be applicable.
type need int

const (
	nothing need = iota
	aSecondHandle
	aReopening
	aWaiter
	aLister
)

// rules is the table of Run, in the order in which it runs.
func rules() []rule {
	return slices.Concat(
		guaranteesRules, claimRules, mismatchRules, fenceRules, expiryRules, resultRules, keyRules, paramsRules,
		cancelRules, resendRules, forgetRules, purgeRules, listRules, waitRules, handleRules, raceRules, randomRules, reopenRules,
	)
}

// suite runs a table of rules against one driver and its store.
type suite struct {
	d            driver.Driver
	second       driver.Driver // made when a rule first needs it
	makeSecond   func(driver.Driver) driver.Driver
	makeReopened func(driver.Driver) driver.Driver
	tx           *txAccess    // only in RunTx
	batch        *batchAccess // only in RunBatch
	rules        []rule
	seed         uint64
	limit        time.Duration // of one rule, until the watchdog ends it
	patience     time.Duration // for what must happen without waiting for anybody
}

func newSuite(d driver.Driver, table func() []rule) *suite {
	return &suite{d: d, rules: table(), seed: pickSeed(), limit: 30 * time.Second, patience: 5 * time.Second}
}

// Statuses of a rule in the report.
const (
	statusPass = "pass"
	statusFail = "fail"
	statusSkip = "skip"
	statusNone = "n/a"
)

func (s *suite) runAll(t *testing.T, config string, skip map[string]string) {
	t.Helper()
	for id, reason := range skip {
		if reason == "" {
			t.Errorf("rule %s is skipped without a reason", id)
		}
		if !slices.ContainsFunc(s.rules, func(r rule) bool { return r.id == id }) {
			t.Errorf("there is no rule %s to skip", id)
		}
	}
	rep := openReport(t, s.d.Guarantees(), config)
	for _, r := range s.rules {
		if reason := s.inapplicable(r); reason != "" {
			rep.rule(r, statusNone, reason)
			continue
		}
		stuck := false
		t.Run(r.id, func(t *testing.T) {
			err := s.check(t.Context(), r)
			stuck = errors.Is(err, errStuck)
			reason, skipped := skip[r.id]
			status, detail := judge(err, reason, skipped)
			rep.rule(r, status, detail)
			switch {
			case status == statusFail:
				t.Errorf("broken promise: %s\n%s", r.promise, detail)
			case status == statusSkip:
				t.Logf("skipped: %s: %v", reason, err)
			}
		})
		if stuck {
			// Whatever holds the store would fail the remaining rules, slowly.
			return
		}
	}
}

// judge says what became of a rule whose check returned err, and the detail for
// the report.
func judge(err error, reason string, skipped bool) (status, detail string) {
	switch {
	case skipped && err == nil:
		return statusFail, "the rule passes, but is skipped: " + reason
	case skipped && !errors.Is(err, errStuck):
		return statusSkip, reason
	case err != nil:
		return statusFail, err.Error()
	}
	return statusPass, ""
}

// inapplicable returns why the rule cannot be checked here, and "" when it can.
func (s *suite) inapplicable(r rule) string {
	switch r.needs {
	case aSecondHandle:
		if s.makeSecond == nil {
			return "the store has one handle"
		}
	case aReopening:
		if s.makeReopened == nil {
			return "the store is not reopened"
		}
	case aWaiter:
		if _, ok := s.d.(driver.Waiter); !ok {
			return "the driver is not a Waiter"
		}
	case aLister:
		if _, ok := s.d.(driver.Lister); !ok {
			return "the driver is not a Lister"
		}
	}
	return ""
}

var errStuck = errors.New("stuck")

// check runs one rule under the watchdog. A panic of the driver is an error.
func (s *suite) check(ctx context.Context, r rule) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := errors.New("the check ended its goroutine")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			}
			done <- err
		}()
		err = r.check(ctx, &env{suite: s, scope: "conformance " + r.id})
	}()
	// The context ends first, so that a driver that honours it tells what it waited for.
	watchdog := time.NewTimer(s.limit + s.limit/4)
	defer watchdog.Stop()
	select {
	case err := <-done:
		return err
	case <-watchdog.C:
		return fmt.Errorf("%w for %v, and the end of the context did not help\n%s", errStuck, s.limit, allStacks())
	}
}

func allStacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
