//go:build linux

package faults

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idem-go/idem/driver"
)

// verb is one call of a driver's method, with its answer.
type verb struct {
	name      string
	key       driver.Key
	call, ret int64
	now       time.Time // given in the params

	// after is the method of driver/state.go: what the record becomes, or why not.
	// It also says whether that is written, or only answered.
	after func(driver.Record) (next driver.Record, write bool, err error)
	// The answer is a record: after's, or what is there.
	claim, get bool

	rec     driver.Record // the answer
	err     error         // nil or driver.ErrNotHolder
	unknown error         // the answer was lost: the verb may have happened, or happen later
	again   bool          // the client library may have sent it more than once
	purge   bool          // which touches a key or leaves it to the next one
	asked   string        // the params, for the story
}

// cell is a record as a state of the machine: comparable, and without its key.
type cell string

func cellOf(r driver.Record) cell {
	if r.State == driver.StateAbsent {
		return ""
	}
	r.Key = driver.Key{}
	return cell(r.AppendBinary(nil, driver.KeyHash{}))
}

func (c cell) record() driver.Record {
	if c == "" {
		return driver.Record{}
	}
	r, err := driver.DecodeRecord([]byte(c), driver.KeyHash{})
	if err != nil {
		panic(err)
	}
	return r
}

// machine is the machine of driver/state.go: a key is absent, in flight under a token
// and until an instant, complete, unknown or expired, and the verbs are its steps.
var machine = porcupine.NondeterministicModel{
	Init: func() []any { return []any{cell("")} },
	Step: func(state, input, output any) []any {
		c, v := state.(cell), input.(*verb)
		r := c.record()
		next, write, err := v.after(r)
		then := c
		if write && err == nil {
			then = cellOf(next)
		}
		switch {
		case output.(bool):
			if then == c {
				return []any{c}
			}
			return []any{c, then}
		case v.get:
			if !reads(v.rec, r, v.now) {
				return nil
			}
			return []any{c}
		case (err == nil) != (v.err == nil):
			return nil
		case v.claim && busy(v.rec):
			// PostgreSQL: another transaction has the row, of which no more is known than
			// that it is a claim's. Whoever asks again finds out.
			if s := r.StateAt(v.now); s != driver.StateInFlight && s != driver.StateUnknown {
				return nil
			}
			return []any{c}
		case v.claim && !same(v.rec, next):
			return nil
		}
		return []any{then}
	},
	Equal: func(a, b any) bool { return a == b },
}

// busy is a record in flight of which the driver could not see the lease.
func busy(r driver.Record) bool {
	return r.State == driver.StateInFlight && r.Token.IsZero() && r.LeaseUntil.IsZero()
}

// same reports whether an answer is the record that is wanted, in all that a driver
// promises about a record of its state.
func same(got, want driver.Record) bool { return cellOf(shown(got)) == cellOf(shown(want)) }

func shown(r driver.Record) driver.Record {
	if r.State != driver.StateInFlight {
		r.LeaseUntil = time.Time{}
	}
	if r.State != driver.StateComplete {
		r.CompletedAt, r.GraceUntil = time.Time{}, time.Time{}
	}
	return r
}

// reads reports whether Get may answer got where the record is r: one that is over
// may be gone, and so may an expired result.
func reads(got, r driver.Record, now time.Time) bool {
	state := r.StateAt(now)
	if got.StateAt(now) != state {
		return false
	}
	switch state {
	case driver.StateAbsent:
		return true
	case driver.StateExpired:
		got.Result, r.Result = nil, nil
	}
	return same(got, r)
}

// operations are the steps that the machine may owe to a verb, of which no more is
// known than what was heard until an instant. An output that is true stands for a
// step that may have been taken, or not.
func (v *verb) operations(client int, until int64) (ops []porcupine.Operation) {
	step := func(maybe bool, ret int64) {
		ops = append(ops, porcupine.Operation{ClientId: client + len(ops), Input: v, Output: maybe, Call: v.call, Return: ret})
	}
	heard := v.unknown == nil && v.ret <= until
	switch {
	case v.get && !heard:
	case v.purge && heard:
		step(true, v.ret)
	case !heard:
		step(true, math.MaxInt64)
	default:
		step(false, v.ret)
		if v.again && !v.get {
			step(true, math.MaxInt64)
		}
	}
	return ops
}

// judgeVerbs checks the history of one key. It returns "" when there is an order of
// the verbs in which each answer is the machine's.
func judgeVerbs(history []*verb) string {
	var ops []porcupine.Operation
	for _, v := range history {
		ops = append(ops, v.operations(len(ops), math.MaxInt64)...)
	}
	switch porcupine.CheckOperationsTimeout(machine.ToModel(), ops, checkTimeout) {
	case porcupine.Illegal:
		return "no order of the verbs explains their answers" + culprit(history)
	case porcupine.Unknown:
		return fmt.Sprintf("the history could not be checked in %v", checkTimeout)
	}
	return ""
}

// culprit names the answer without which the history, cut off there, has an order.
func culprit(history []*verb) string {
	ended := append([]*verb(nil), history...)
	sort.Slice(ended, func(i, j int) bool { return ended[i].ret < ended[j].ret })
	n := sort.Search(len(ended), func(n int) bool {
		var ops []porcupine.Operation
		for _, v := range history {
			if v.call > ended[n].ret {
				continue
			}
			ops = append(ops, v.operations(len(ops), ended[n].ret)...)
		}
		return porcupine.CheckOperationsTimeout(machine.ToModel(), ops, checkTimeout) == porcupine.Illegal
	})
	if n == len(ended) {
		return ""
	}
	return fmt.Sprintf(", first of all that of %s %s at %.3f ms", ended[n].name, ended[n].asked, float64(ended[n].ret-history[0].call)/1e6)
}

// tale prints a history.
func tale(history []*verb, base time.Time) string {
	var b strings.Builder
	start := history[0].call
	for _, v := range history {
		fmt.Fprintf(&b, "%9.3f to %9.3f ms  now %+8.3f s  %s %s: ", float64(v.call-start)/1e6, float64(v.ret-start)/1e6,
			v.now.Sub(base).Seconds(), v.name, v.asked)
		switch {
		case v.unknown != nil:
			fmt.Fprintf(&b, "not known: %v", v.unknown)
		case v.err != nil:
			b.WriteString(v.err.Error())
		case v.claim || v.get:
			b.WriteString(brief(v.rec, base))
		default:
			b.WriteString("ok")
		}
		if v.again {
			b.WriteString(" (perhaps sent again)")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func brief(r driver.Record, base time.Time) string {
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return fmt.Sprintf("%+.3f", t.Sub(base).Seconds())
	}
	return fmt.Sprintf("%v token %.4s fence %d attempt %d hold %t op %s created %s lease %s retain %s grace %s result %q note %q",
		r.State, r.Token, r.Fence-base.UnixMicro(), r.Attempt, r.Hold, r.Operation, at(r.CreatedAt), at(r.LeaseUntil), at(r.RetainUntil),
		at(r.GraceUntil), r.Result, r.Note)
}

// definite reports whether an error is an answer.
func definite(err error) bool { return err == nil || errors.Is(err, driver.ErrNotHolder) }
