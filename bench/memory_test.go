package bench

import (
	"context"
	"sync"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
)

// crop is how many keys are put into one store in memory before it is replaced:
// what fills the heap would be paid for by everything that is measured next.
const crop = 20000

// renewed calls the subject that grow returned, and a new one after every crop.
// It is for one caller at a time.
func renewed(name string, grow func() func(context.Context, string) error) subject {
	var mu sync.Mutex
	call, left := grow(), crop
	return subject{name: name, call: func(ctx context.Context, id string) error {
		mu.Lock()
		if left--; left < 0 {
			call, left = grow(), crop
		}
		c := call
		mu.Unlock()
		return c(ctx, id)
	}}
}

const (
	byHandMap     = "by hand: a map and a mutex"
	byHandMapRead = "by hand: a read of the map"
)

// bareDoing and bareRedoing are without what a request costs before the core sees it.
func bareDoing(tb testing.TB) func(context.Context, string) error {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](memory.New(), config))
	fp := print()
	return func(ctx context.Context, id string) error {
		res, err := op.Do(ctx, key(id), fp, runs)
		return is(false, res, err)
	}
}

func bareRedoing(tb testing.TB) func(context.Context, string) error {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](memory.New(), config))
	fp := print()
	must[idem.Result[[]byte]](tb)(op.Do(tb.Context(), key("x"), fp, runs))
	return func(ctx context.Context, _ string) error {
		res, err := op.Do(ctx, key("x"), fp, runs)
		return is(true, res, err)
	}
}

// coreTables are the core's own cost: everything but the store.
func coreTables(tb testing.TB) []*table {
	var mu sync.Mutex
	stored := make(map[idem.Key][]byte)
	first := &table{id: "memory-first", title: "The core over the memory driver, first run, one caller", callers: 1, subjects: []subject{
		{name: byHandMap, call: func(_ context.Context, id string) error {
			mu.Lock()
			defer mu.Unlock()
			if len(stored) == crop {
				stored = make(map[idem.Key][]byte)
			}
			if _, ok := stored[key(id)]; ok {
				return errTaken
			}
			stored[key(id)] = result
			return nil
		}},
		renewed(do, func() func(context.Context, string) error { return bareDoing(tb) }),
	}}
	read := map[idem.Key][]byte{key("x"): result}
	replay := &table{id: "memory-replay", title: "The core over the memory driver, replay, one caller", callers: 1, subjects: []subject{
		{name: byHandMapRead, call: func(context.Context, string) error {
			mu.Lock()
			defer mu.Unlock()
			return had(read[key("x")], nil)
		}},
		{name: replayDo, call: bareRedoing(tb)},
	}}
	return []*table{first, replay}
}

// allocations are those of one call over the memory driver.
func allocations(tb testing.TB) (first, replay float64) {
	const calls = 1000
	var all [calls + 1]string // AllocsPerRun calls once more, to warm up
	for i := range all {
		all[i] = newID()
	}
	ctx, n := tb.Context(), 0
	per := func(call func(context.Context, string) error) float64 {
		n = 0
		return testing.AllocsPerRun(calls, func() {
			if err := call(ctx, all[n]); err != nil {
				tb.Fatal(err)
			}
			n++
		})
	}
	return per(bareDoing(tb)), per(bareRedoing(tb))
}
