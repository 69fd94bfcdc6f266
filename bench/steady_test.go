package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
)

const (
	steadyCallers = 8
	unslowed      = 1.2  // how many times as long a claim may take while the store is purged
	behind        = 0.25 // of what came due in a slice, the most that may be left at its end
)

// steady is the contract of the keys that come and go. Purging runs more often than by default,
// so that it falls into every slice.
func steady() idem.Config {
	return idem.Config{Name: config.Name, Retention: time.Hour, PurgeInterval: max(*slice/20, time.Millisecond)}
}

// replayed is a store in which what was claimed over one stretch of time is due over another of the
// same length: nobody waits for a retention to end, and no claim in flight is ever due.
type replayed struct {
	driver.Driver
	from, to time.Time // when the claims were made
	began    time.Time // when they begin to be due
	purged   atomic.Int64
}

// now is the instant to purge by.
func (d *replayed) now() time.Time {
	at := d.from.Add(time.Since(d.began))
	if at.After(d.to) {
		at = d.to
	}
	return at.Add(steady().Retention)
}

func (d *replayed) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	p.Now = d.now()
	n, err := d.Driver.Purge(context.WithoutCancel(ctx), p) // what it has deleted counts
	d.purged.Add(int64(n))
	return n, err
}

// phase is one slice of claims.
type phase struct {
	micros          float64 // of a call
	claimed, purged float64 // a second
	backlog         int     // records that were due and still there in the end
	due             int     // records that came due meanwhile
	drained         float64 // a second, with nobody claiming
	logged          float64 // bytes of write-ahead log per record, of that
}

// measureSteady compares slices in which as many records come due, and are purged, as are claimed to
// slices without purging.
func measureSteady(tb testing.TB, g *grown) string {
	one := steadyPhase
	if g.expiring != nil {
		one = expiringPhase
	}
	var off, on []phase
	for round := range min(*rounds, 7) {
		for i := range 2 {
			if (round+i)%2 == 0 {
				off = append(off, one(tb, g, off, false))
			} else {
				on = append(on, one(tb, g, off, true))
			}
		}
	}
	of := func(all []phase, f func(phase) float64) float64 {
		var vs []float64
		for _, p := range all {
			vs = append(vs, f(p))
		}
		return quantile(vs, 0.5)
	}
	claim := func(p phase) float64 { return p.micros }
	rate := func(p phase) float64 { return p.claimed }
	purge := func(p phase) float64 { return p.purged }
	left := func(p phase) float64 { return float64(p.backlog) }
	var ratios []float64
	for i := range on {
		ratios = append(ratios, on[i].micros/off[i].micros)
	}
	ratio := quantile(ratios, 0.5)
	verdict := "met"
	if ratio > unslowed {
		verdict = "**missed**"
	}
	share := func(of float64) string { return number(100*of) + " % of " }
	late := of(on, left) / of(on, func(p phase) float64 { return float64(p.due) })
	keeps := share(late) + "what came due: it keeps up"
	switch {
	case g.expiring != nil: // Redis deletes in earnest when a tenth of its keys is over
		keeps = share(of(on, left)/float64(g.n)) + "all keys"
	case late > behind:
		keeps = share(late) + "what came due: **it falls behind**"
	}
	name, alone := "`Maintain`", of(on, func(p phase) float64 { return p.drained })
	if g.expiring != nil {
		name = "expiry by Redis"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nSteady state over %s other keys, %d callers of `Do`:\n\n| | without purging | with %s |\n| --- | ---: | ---: |\n", thousands(g.n), steadyCallers, name)
	fmt.Fprintf(&b, "| a first run, µs | %s | %s |\n", number(of(off, claim)), number(of(on, claim)))
	fmt.Fprintf(&b, "| claimed a second | %s | %s |\n", thousands(int(of(off, rate))), thousands(int(of(on, rate))))
	fmt.Fprintf(&b, "| deleted a second | 0 | %s |\n", thousands(int(of(on, purge))))
	fmt.Fprintf(&b, "| due and not yet deleted in the end | | %s (%s) |\n\n", thousands(int(of(on, left))), keeps)
	fmt.Fprintf(&b, "A first run takes %s × as long (middle half %s–%s; at most 1.2: %s).", number(ratio), number(quantile(ratios, 0.25)), number(quantile(ratios, 0.75)), verdict)
	if alone > 0 {
		fmt.Fprintf(&b, " With nobody claiming, `Purge` deletes %s records a second.", thousands(int(alone)))
	}
	if g.logged != nil {
		fmt.Fprintf(&b, " It writes %s bytes of write-ahead log for each.", number(of(on, func(p phase) float64 { return p.logged })))
	}
	b.WriteString("\n")
	return b.String()
}

// steadyPhase measures a slice in which the records of the slice before are due.
func steadyPhase(tb testing.TB, g *grown, _ []phase, maintain bool) phase {
	d := &replayed{Driver: g.drv}
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](d, steady()))
	var made atomic.Int64
	claims := subject{name: do, call: func(ctx context.Context, id string) error {
		made.Add(1)
		res, err := op.Do(ctx, key(id), print(), runs)
		return is(false, res, err)
	}}
	var p phase
	d.from = time.Now()
	if _, err := spend(tb.Context(), claims, steadyCallers, *slice); err != nil {
		tb.Fatal(err)
	}
	d.to, p.due = time.Now(), int(made.Load())

	ctx, stop := context.WithCancel(tb.Context())
	defer stop()
	var maintaining sync.WaitGroup
	d.began = time.Now()
	if maintain {
		maintaining.Go(func() { _ = op.Maintain(ctx) })
	}
	p.measure(tb, claims, func() int { return int(d.purged.Load()) })
	at := d.now()
	stop()
	maintaining.Wait()
	left, _ := purgeAll(tb, g.drv, at)
	if p.backlog = left; maintain {
		if rest, _ := purgeAll(tb, g.drv, d.to.Add(steady().Retention)); int(d.purged.Load())+left+rest != p.due {
			tb.Errorf("purged %d, then %d and %d, of %d that were due", d.purged.Load(), left, rest, p.due)
		}
	}
	before := int64(0)
	if g.logged != nil {
		before = g.logged()
	}
	all, rate := purgeAll(tb, g.drv, time.Now().Add(steady().Retention))
	if p.drained = rate; g.logged != nil && all > 0 {
		p.logged = float64(g.logged()-before) / float64(all)
	}
	return p
}

// measure spends one slice on claims, and counts what disappears meanwhile.
func (p *phase) measure(tb testing.TB, claims subject, purged func() int) {
	began, before := time.Now(), purged()
	var err error
	if p.micros, err = spend(tb.Context(), claims, steadyCallers, *slice); err != nil {
		tb.Fatal(err)
	}
	p.claimed = 1e6 * steadyCallers / p.micros
	p.purged = float64(purged()-before) / time.Since(began).Seconds()
}

// purgeAll purges what is due at an instant, and returns how many records, in all and a second.
func purgeAll(tb testing.TB, d driver.Driver, now time.Time) (all int, rate float64) {
	tb.Helper()
	for began := time.Now(); ; {
		n := must[int](tb)(d.Purge(tb.Context(), driver.PurgeParams{Limit: 1000, Now: now}))
		if all += n; n < 1000 {
			return all, float64(all) / time.Since(began).Seconds()
		}
	}
}

// expiringPhase is steadyPhase where the store deletes by itself: before, as many records are added
// as a slice claims, and all expire in the course of it.
func expiringPhase(tb testing.TB, g *grown, earlier []phase, expire bool) phase {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](g.drv, retained))
	claims := subject{name: do, call: func(ctx context.Context, id string) error {
		res, err := op.Do(ctx, key(id), print(), runs)
		return is(false, res, err)
	}}
	var p phase
	count, before := 0, g.expired(tb)
	if expire {
		rate := 1000.0
		if len(earlier) > 0 {
			rate = earlier[len(earlier)-1].claimed
		}
		count = max(1, int(rate*slice.Seconds()))
		p.due = count
		g.expiring(tb, count, *slice)
	}
	p.measure(tb, claims, func() int { return g.expired(tb) })
	p.backlog = max(0, count-(g.expired(tb)-before))
	return p
}
