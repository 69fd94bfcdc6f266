package bench

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/fingerprint"
)

var (
	rounds = flag.Int("rounds", 1, "how often every subject is measured")
	slice  = flag.Duration("slice", 20*time.Millisecond, "how long one subject is measured in one round")
	out    = flag.String("out", "", "the directory for performance.md and performance.svg; empty writes nothing")
)

// subject is one way of doing a thing.
type subject struct {
	name string
	// call does it once. Its id is new for a first run, and ignored by a replay.
	call func(ctx context.Context, id string) error
	cost *cost // nil: not counted
}

// cost is what one call takes of a server.
type cost struct{ trips, flushes float64 }

// unknown is the count of what nobody counted.
const unknown = -1

// table is a set of subjects that are measured side by side. The first is the floor.
type table struct {
	id, title string
	callers   int
	subjects  []subject
	micros    [][]float64 // by subject and round: microseconds of one call
}

func (t *table) index(name string) int {
	return slices.IndexFunc(t.subjects, func(s subject) bool { return s.name == name })
}

// measure gives every subject one slice of time, beginning with another one in
// every round, so that what else the machine does falls on all of them.
func (t *table) measure(tb testing.TB, round int) {
	tb.Helper()
	if t.micros == nil {
		t.micros = make([][]float64, len(t.subjects))
		for _, s := range t.subjects { // connections, statements, caches
			if _, err := spend(tb.Context(), s, t.callers, *slice/4); err != nil {
				tb.Fatalf("%s: %s: %v", t.title, s.name, err)
			}
		}
	}
	for n := range t.subjects {
		i := (n + round) % len(t.subjects)
		took, err := spend(tb.Context(), t.subjects[i], t.callers, *slice)
		if err != nil {
			tb.Fatalf("%s: %s: %v", t.title, t.subjects[i].name, err)
		}
		t.micros[i] = append(t.micros[i], took)
	}
}

// spend calls s from that many goroutines for d, each at least once, and returns the
// time of a call in microseconds: for one caller the median, which does not depend
// on how often the machine did something else, and for several what their
// throughput amounts to.
func spend(ctx context.Context, s subject, callers int, d time.Duration) (float64, error) {
	var calls atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	var each []float64
	began := time.Now()
	end := began.Add(d)
	for range callers {
		all.Go(func() {
			for last := began; ; {
				if err := s.call(ctx, newID()); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				calls.Add(1)
				now := time.Now()
				if callers == 1 {
					each = append(each, float64(now.Sub(last).Nanoseconds())/1000)
				}
				if last = now; !now.Before(end) {
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	if callers == 1 {
		return quantile(each, 0.5), nil
	}
	return float64(took.Nanoseconds()) / 1000 * float64(callers) / float64(calls.Load()), nil
}

// time returns the median time of a call in microseconds.
func (t *table) time(i int) float64 { return quantile(t.micros[i], 0.5) }

// ratios returns, for every round, how many times as long subject i took as subject to.
func (t *table) ratios(i, to int) []float64 {
	all := make([]float64, len(t.micros[i]))
	for r := range all {
		all[r] = t.micros[i][r] / t.micros[to][r]
	}
	return all
}

// ratio returns the median of the paired ratios of two subjects.
func (t *table) ratio(name, to string) float64 {
	i, j := t.index(name), t.index(to)
	if i < 0 || j < 0 {
		panic(fmt.Sprintf("%s: no subject %q or %q", t.id, name, to))
	}
	return quantile(t.ratios(i, j), 0.5)
}

// quantile returns the q-quantile of values, between the two nearest.
func quantile(values []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(values))
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (s[i+1]-s[i])*(at-float64(i))
}

var ids atomic.Int64

func newID() string { return "0123456789abcdef-" + strconv.FormatInt(ids.Add(1), 10) }

// result is what every operation returns and every replay has to.
var result = []byte("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" +
	"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" +
	"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" +
	"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")

// body is what a request says.
var body = []byte(`{"item":"book","quantity":3,"currency":"EUR","amount":1999}`)

var config = idem.Config{Name: "bench.order", Retention: time.Hour}

func key(id string) idem.Key { return idem.Key{Scope: "tenant-1", ID: id} }

func print() idem.Fingerprint { return fingerprint.Bytes(body) }

func runs(context.Context, *idem.Run) ([]byte, error) { return result, nil }

// is checks that a call was a first run or a replay, and had the result.
func is(replayed bool, res idem.Result[[]byte], err error) error {
	switch {
	case err != nil:
		return err
	case res.Replayed != replayed || len(res.Value) != len(result):
		return fmt.Errorf("replayed %v with %d bytes", res.Replayed, len(res.Value))
	}
	return nil
}

// had checks a stored result that was read by hand.
func had(value []byte, err error) error {
	if err == nil && len(value) != len(result) {
		err = fmt.Errorf("a result of %d bytes", len(value))
	}
	return err
}

// known makes keys that are complete, by calling first, and returns a function that
// returns one after the other: two callers at a time seldom have the same.
func known(tb testing.TB, first func(ctx context.Context, id string) error) func() string {
	tb.Helper()
	all := make([]string, 256)
	for i := range all {
		all[i] = newID()
		if err := first(tb.Context(), all[i]); err != nil {
			tb.Fatal(err)
		}
	}
	var n atomic.Int64
	return func() string { return all[int(n.Add(1))%len(all)] }
}

// replaying is a subject that repeats keys that are complete.
func replaying(name string, next func() string, call func(ctx context.Context, id string) error) subject {
	return subject{name: name, call: func(ctx context.Context, _ string) error { return call(ctx, next()) }}
}

func must[V any](tb testing.TB) func(V, error) V {
	return func(v V, err error) V {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}
