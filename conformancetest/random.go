package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/idem-go/idem/driver"
)

const (
	randomKeys  = 4
	randomSteps = 300
)

// A walk is one random sequence of verbs over few keys, checked step by step
// against the pure functions of package driver.
type walk struct {
	*env
	rnd  *rand.Rand
	now  time.Time
	keys []*modelKey
}

// modelKey is what the model knows about one key.
type modelKey struct {
	key driver.Key
	// Records the store may hold. There are two when one is due: a store may
	// drop such a record by itself, and need not.
	may     []driver.Record
	holders []driver.HolderParams
	history []string
}

// fits keeps the records that could have led to what was observed; want says
// what a record would have led to, and whether that is it.
func (k *modelKey) fits(want func(driver.Record) (next driver.Record, mismatch string)) error {
	var next []driver.Record
	var why []string
	for _, r := range k.may {
		n, mismatch := want(r)
		if mismatch != "" {
			why = append(why, mismatch)
			continue
		}
		if !slices.ContainsFunc(next, func(r driver.Record) bool { return diff(r, n) == "" }) {
			next = append(next, n)
		}
	}
	if len(next) == 0 {
		return errors.New(strings.Join(why, "; or "))
	}
	k.may = next
	return nil
}

// age adds what a store may have made of the records of the key by now.
func (k *modelKey) age(now time.Time) {
	for _, r := range k.may {
		next, due, remove := r.AfterPurge(now)
		if remove {
			next = driver.Record{}
		}
		if due && !slices.ContainsFunc(k.may, func(r driver.Record) bool { return diff(r, next) == "" }) {
			k.may = append(k.may, next)
		}
	}
}

// step does one random thing to one key, and checks the answer.
func (w *walk) step(ctx context.Context, d driver.Driver, k *modelKey) (err error) {
	w.now = w.now.Add([]time.Duration{
		0, 0, 0, time.Microsecond, time.Second, lease / 2, lease, lease, 2 * lease, retention, keep, grace,
	}[w.rnd.IntN(12)])
	k.age(w.now)
	verb := w.rnd.IntN(20)
	switch {
	case verb < 7 || len(k.holders) == 0:
		return w.claimStep(ctx, d, k)
	case verb < 17:
		return w.holderStep(ctx, d, k, verb)
	case verb < 18:
		return w.purgeStep(ctx)
	}
	return w.getStep(ctx, d, k)
}

func (w *walk) claimStep(ctx context.Context, d driver.Driver, k *modelKey) error {
	p := w.claim(k.key, w.now)
	if n := len(k.holders); n > 0 && w.rnd.IntN(4) == 0 {
		p.Token = k.holders[n-1].Token // repeated, or delayed on the network
		if w.rnd.IntN(2) == 0 {
			p.Token = k.holders[w.rnd.IntN(n)].Token
		}
	}
	if w.rnd.IntN(6) == 0 {
		p = asksOther(p)
	}
	p.Hold, p.Resolve = w.rnd.IntN(12) == 0, w.rnd.IntN(8) == 0
	got, err := d.Claim(ctx, p)
	k.note(w.now, "Claim token=%.8s op=%s hold=%t resolve=%t: %s, %v", p.Token, p.Operation, p.Hold, p.Resolve, show(got), err)
	if err != nil {
		return err
	}
	if granted(got, p) {
		k.holders = append(k.holders, holder(k.key, got, time.Time{}))
	}
	return k.fits(func(r driver.Record) (driver.Record, string) {
		want, _ := r.AfterClaim(p, w.now)
		return want, diff(got, want)
	})
}

func (w *walk) holderStep(ctx context.Context, d driver.Driver, k *modelKey, verb int) error {
	h := k.holders[len(k.holders)-1]
	if w.rnd.IntN(3) == 0 {
		h = k.holders[w.rnd.IntN(len(k.holders))]
	}
	if w.rnd.IntN(20) == 0 {
		h.Fence++
	}
	h.Now = w.now
	note := ""
	if w.rnd.IntN(4) == 0 {
		note = fmt.Sprintf("note %d", w.rnd.IntN(100))
	}
	var got error
	var after func(driver.Record) (driver.Record, error)
	var name string
	switch {
	case verb < 10:
		p := driver.RenewParams{HolderParams: h, Lease: time.Duration(1+w.rnd.IntN(3)) * lease}
		name, got = "Renew", d.Renew(ctx, p)
		after = func(r driver.Record) (driver.Record, error) { return r.AfterRenew(p, w.now) }
	case verb < 13:
		p := driver.CompleteParams{HolderParams: h, Retention: keep, Note: note}
		if w.rnd.IntN(2) == 0 {
			p.Grace = grace
		}
		if w.rnd.IntN(4) > 0 {
			p.Result = fmt.Appendf([]byte{}, "%.*s", w.rnd.IntN(9), p.Token)
		}
		name, got = fmt.Sprintf("Complete result=%s grace=%v", showBytes(p.Result), p.Grace), d.Complete(ctx, p)
		after = func(r driver.Record) (driver.Record, error) { return r.AfterComplete(p, w.now) }
	case verb < 16:
		p := driver.ReleaseParams{HolderParams: h, Abandon: w.rnd.IntN(2) == 0, Note: note}
		name, got = fmt.Sprintf("Release abandon=%t", p.Abandon), d.Release(ctx, p)
		after = func(r driver.Record) (driver.Record, error) { return r.AfterRelease(p, w.now) }
	default:
		p := driver.ForgetParams{HolderParams: h}
		name, got = "Forget", d.Forget(ctx, p)
		after = func(r driver.Record) (driver.Record, error) {
			remove, err := r.AfterForget(p)
			if remove {
				r = driver.Record{}
			}
			return r, err
		}
	}
	k.note(w.now, "%s token=%.8s fence=%d note=%q: %v", name, h.Token, h.Fence, note, got)
	if got != nil && !errors.Is(got, driver.ErrNotHolder) {
		return got
	}
	return k.fits(func(r driver.Record) (driver.Record, string) {
		next, want := after(r)
		if (got == nil) != (want == nil) {
			return r, fmt.Sprintf("%s answered %v, want %v", name, got, want)
		}
		return next, ""
	})
}

func (w *walk) purgeStep(ctx context.Context) error {
	_, err := w.drain(ctx, w.now)
	for _, k := range w.keys {
		k.note(w.now, "Purge: %v", err)
		var left []driver.Record
		for _, r := range k.may {
			next, _, remove := r.AfterPurge(w.now)
			if remove {
				next = driver.Record{}
			}
			left = append(left, next)
		}
		k.may = left
	}
	return err
}

// getStep reads the key. Get may return what Purge would have dropped.
func (w *walk) getStep(ctx context.Context, d driver.Driver, k *modelKey) error {
	got, err := get(ctx, d, k.key, w.now)
	k.note(w.now, "Get: %s, %v", show(got), err)
	if err != nil {
		return err
	}
	return k.fits(func(r driver.Record) (driver.Record, string) {
		want := r.StateAt(w.now)
		if state := got.StateAt(w.now); state != want {
			return r, fmt.Sprintf("the key is %v, want %v", state, want)
		}
		seen := got
		switch want {
		case driver.StateAbsent:
			return r, ""
		case driver.StateExpired:
			seen.Result = r.Result
		}
		return r, diff(seen, r)
	})
}

func (k *modelKey) note(now time.Time, format string, args ...any) {
	k.history = append(k.history, offset(now)+" "+fmt.Sprintf(format, args...))
}

// wander takes random steps, through the handle that pick chooses.
func wander(ctx context.Context, e *env, pick func(step int) driver.Driver) error {
	w := &walk{env: e, rnd: rand.New(rand.NewPCG(e.seed, 0)), now: t0}
	for range randomKeys {
		w.keys = append(w.keys, &modelKey{key: e.key(), may: []driver.Record{{}}})
	}
	for i := range randomSteps {
		k := w.keys[w.rnd.IntN(len(w.keys))]
		d := pick(i)
		err := w.step(ctx, d, k)
		if err == nil {
			err = w.getStep(ctx, d, k)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w\nrerun with -conformance.seed=%d; what happened to %s:\n\t%s",
				i, err, e.seed, k.key.ID, strings.Join(k.history, "\n\t"))
		}
	}
	return nil
}

var randomRules = []rule{
	{
		id:      "random/model",
		promise: "a random sequence of verbs is answered as the table of states says, step by step",
		check: func(ctx context.Context, e *env) error {
			return wander(ctx, e, func(int) driver.Driver { return e.d })
		},
	},
	{
		id:      "random/two-handles",
		promise: "a random sequence of verbs through two handles in turn is answered as through one",
		needs:   aSecondHandle,
		check: func(ctx context.Context, e *env) error {
			return wander(ctx, e, func(step int) driver.Driver {
				if step%2 == 0 {
					return e.d
				}
				return e.other()
			})
		},
	},
}
