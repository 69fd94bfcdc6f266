//go:build linux

package faults

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTimeout bounds the check of one key's history. A check that takes longer is a
// failure: it has shown nothing.
const checkTimeout = 30 * time.Second

// call is one call of a history with everything known about it.
type call struct {
	event         // as it was made
	answer *event // nil: the process died first
	runs   []event
	effect *event
	end    *event
	// excused says that "in flight" may be old news: another call of the same handle,
	// whom this one follows, had not returned.
	excused bool
}

// value is the outcome that the call records if it records one; "" for none.
func (c *call) value() string {
	switch {
	case c.Plan == succeed, c.Plan == notApplied && (c.Way == do || c.Way == doThenTx):
		return string(c.Way) + "/" + c.ID
	case c.Plan == endFinal:
		return "final/" + string(c.Way) + "/" + c.ID
	}
	return ""
}

// recorded reports whether the call may have recorded its outcome.
func (c *call) recorded() bool { return c.value() != "" && (len(c.runs) > 0 || c.Way == resolve) }

func (c *call) class() class {
	if c.answer == nil {
		return maybe
	}
	return c.answer.Class
}

func (c *call) returned() int64 {
	if c.answer == nil {
		return math.MaxInt64
	}
	return c.answer.T
}

// givesUp returns when the call may give its lease up at the earliest: when fn has
// returned or, if that was an outcome to be recorded, when the call has returned.
func (c *call) givesUp() int64 {
	switch {
	case c.end == nil:
		return math.MaxInt64
	case c.Way == do && c.effect != nil && c.value() != "":
		return c.returned()
	}
	return c.end.T
}

// calls puts the events of one key together.
func calls(events []event) []*call {
	byID := make(map[string]*call)
	var all []*call
	for i := range events {
		e := &events[i]
		if e.Kind == called {
			c := &call{event: *e}
			byID[e.ID] = c
			all = append(all, c)
			continue
		}
		c := byID[e.ID] // a process writes the call first
		switch e.Kind {
		case began:
			c.runs = append(c.runs, *e)
		case effected:
			c.effect = e
		case ended:
			c.end = e
		case answered:
			c.answer = e
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].T < all[j].T })
	for _, c := range all {
		c.excused = slices.ContainsFunc(all, func(o *call) bool {
			return o != c && o.Group == c.Group && o.T < c.returned() && c.T < o.returned()
		})
	}
	return all
}

// outcomes is the machine of one key as its callers see it: no outcome, then one for
// ever. An outcome is recorded at some instant within its call, or after it when the
// call got no answer; and only by a call whose fn ran.
var outcomes = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, _ any) []any {
		s, c := state.(string), input.(*call)
		switch c.class() {
		case first:
			if s == "" && c.answer.Value == c.value() {
				return []any{c.value()}
			}
		case replayed:
			if s != "" && s == c.answer.Value {
				return []any{s}
			}
		case inFlight:
			if s == "" || c.excused {
				return []any{s}
			}
		case nothing:
			return []any{s}
		case maybe:
			if s == "" && c.recorded() {
				return []any{s, c.value()}
			}
			return []any{s}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a == b },
}

// decisive returns the calls that an order of all calls depends on. A call that was
// told "in flight" only has to begin before the outcome, and a replay to end after
// it, so the last of the ones to begin and the first of the others to end speak for
// all. Without this, dozens of calls that wait at the same time have more orders
// than can be tried.
func decisive(all []*call) (few []*call) {
	var waited *call
	heard := make(map[string]*call)
	for _, c := range all {
		switch c.class() {
		case inFlight:
			if !c.excused && (waited == nil || waited.T < c.T) {
				waited = c
			}
		case replayed:
			if o := heard[c.answer.Value]; o == nil || c.returned() < o.returned() {
				heard[c.answer.Value] = c
			}
		case first:
			few = append(few, c)
		case maybe:
			if c.recorded() {
				few = append(few, c)
			}
		}
	}
	if waited != nil {
		few = append(few, waited)
	}
	for _, c := range heard {
		few = append(few, c)
	}
	return few
}

// judge returns what is wrong with the history of one key: rows are the calls
// whose business rows are in the store.
func judge(all []*call, rows []string, lease time.Duration) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	var ops []porcupine.Operation
	var outcome string
	var settled []*call
	for _, c := range all {
		switch c.class() {
		case illegal:
			say("call %s was answered %q", c.ID, c.answer.Err)
		case first, replayed:
			if outcome == "" {
				outcome = c.answer.Value
			} else if c.answer.Value != outcome {
				say("two outcomes: %s and %s", outcome, c.answer.Value)
			}
			if c.class() == first {
				settled = append(settled, c)
			}
		}
		if len(c.runs) > 1 {
			say("fn of call %s ran %d times", c.ID, len(c.runs))
		}
	}
	for i, c := range decisive(all) {
		ret := c.returned()
		if c.class() == maybe {
			ret = math.MaxInt64
		}
		ops = append(ops, porcupine.Operation{ClientId: i, Input: c, Call: c.T, Output: c, Return: ret})
	}
	if outcome == "" {
		say("no outcome, and nobody could get one")
	}
	if len(settled) > 1 {
		say("%d calls recorded an outcome", len(settled))
	}
	switch porcupine.CheckOperationsTimeout(outcomes.ToModel(), ops, checkTimeout) {
	case porcupine.Illegal:
		say("no order of the calls explains their answers")
	case porcupine.Unknown:
		say("the history could not be checked in %v", checkTimeout)
	}
	wrong = append(wrong, judgeRows(outcome, rows)...)
	wrong = append(wrong, judgeHold(all)...)
	return append(wrong, judgeRuns(all, outcome, lease)...)
}

// judgeHold looks at a key under policy Hold: after an fn that left no outcome,
// nothing runs until somebody says that it was not applied.
func judgeHold(all []*call) (wrong []string) {
	if !held(all[0].Key) {
		return nil
	}
	for _, a := range all {
		if len(a.runs) == 0 || a.Way == doTx || a.Plan == notApplied && a.runs[0].Attempt == 1 && a.effect == nil && a.end != nil {
			continue
		}
		for _, b := range all {
			if len(b.runs) == 0 || b.runs[0].T <= a.runs[0].T {
				continue
			}
			if !slices.ContainsFunc(all, func(r *call) bool {
				return r.Way == resolve && r.Plan == notApplied && r.T < b.runs[0].T && r.returned() > a.runs[0].T
			}) {
				wrong = append(wrong, fmt.Sprintf("fn of call %s ran after that of call %s, and nobody had resolved it", b.ID, a.ID))
			}
		}
	}
	return wrong
}

// judgeRows compares business rows with the outcome: they are committed together.
func judgeRows(outcome string, rows []string) (wrong []string) {
	var want []string
	if w, id, ok := strings.Cut(outcome, "/"); ok && (w == string(doTx) || w == string(doThenTx)) {
		want = []string{id}
	}
	if !slices.Equal(rows, want) {
		wrong = append(wrong, fmt.Sprintf("business rows %v beside the outcome %q, want %v", rows, outcome, want))
	}
	return wrong
}

// judgeRuns looks at the runs of fn: at most one live owner at a time, and another
// effect only where the one before it could not be recorded.
func judgeRuns(all []*call, outcome string, lease time.Duration) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	var runs []*call
	for _, c := range all {
		if len(c.runs) > 0 && c.Way != doTx {
			runs = append(runs, c)
		}
	}
	// In the order of their fences. A clock that is set back lets a fence begin anew
	// where nothing is left of the record before: there, in the order of time, and
	// whoever begins under a lower fence is late, or has been overtaken.
	jumps := lease == 0
	sort.Slice(runs, func(i, j int) bool {
		if jumps {
			return runs[i].runs[0].T < runs[j].runs[0].T
		}
		return runs[i].runs[0].Fence < runs[j].runs[0].Fence
	})
	var before, effect *call // the run before, and the last that had an effect
	for _, c := range runs {
		run := c.runs[0]
		if jumps && before != nil && run.Fence < before.runs[0].Fence {
			continue
		}
		// A lease that was asked for at T lasts until T+lease at the least, unless it is
		// given up after fn.
		for _, o := range all {
			if o == c || len(o.runs) == 0 {
				continue
			}
			begin := o.runs[0].T
			if begin > run.T && begin < min(c.T+int64(lease), c.givesUp()) {
				say("fn of call %s began while call %s had its lease", o.ID, c.ID)
			}
		}
		if before != nil && run.Fence == before.runs[0].Fence {
			say("calls %s and %s ran under one fence", before.ID, c.ID)
		}
		if before != nil && before.class() == first {
			say("fn of call %s ran after call %s had recorded its outcome", c.ID, before.ID)
		}
		if effect != nil && run.Attempt <= effect.runs[0].Attempt && !held(c.Key) { // see judgeHold
			say("call %s ran as attempt %d after the effect of call %s in attempt %d", c.ID, run.Attempt, effect.ID, effect.runs[0].Attempt)
		}
		before = c
		if c.effect != nil {
			effect = c
		}
	}
	for _, c := range all {
		if w := c.value(); w != "" && w == outcome && !c.recorded() {
			say("the outcome is that of call %s, whose fn never ran", c.ID)
		}
	}
	return wrong
}

// story prints the history of a key.
func story(all []*call) string {
	var b strings.Builder
	start := all[0].T
	at := func(t int64) string { return fmt.Sprintf("%8.1f", float64(t-start)/1e6) }
	for _, c := range all {
		fmt.Fprintf(&b, "%s ms  %-8s %s in %s, fn to end with %s", at(c.T), c.Way, c.ID, c.Group, c.Plan)
		for _, r := range c.runs {
			fmt.Fprintf(&b, "; fn at%s, attempt %d, fence %d", at(r.T), r.Attempt, r.Fence)
		}
		if c.effect != nil {
			fmt.Fprintf(&b, "; effect at%s", at(c.effect.T))
		}
		if c.answer == nil {
			b.WriteString("; died\n")
			continue
		}
		fmt.Fprintf(&b, "; at%s: %s %s %s\n", at(c.answer.T), c.answer.Class, c.answer.Value, c.answer.Err)
	}
	return b.String()
}
