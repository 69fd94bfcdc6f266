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
		renewed(do, func() func(context.Context, string) error { return doing(tb, do, memory.New()).call }),
	}}
	read := map[idem.Key][]byte{key("x"): result}
	replay := &table{id: "memory-replay", title: "The core over the memory driver, replay, one caller", callers: 1, subjects: []subject{
		{name: byHandMapRead, call: func(context.Context, string) error {
			mu.Lock()
			defer mu.Unlock()
			return had(read[key("x")], nil)
		}},
		redoing(tb, memory.New()),
	}}
	return []*table{first, replay}
}

// allocations are those of one call over the memory driver.
func allocations(tb testing.TB) (first, replay float64) {
	d := memory.New()
	run, again := doing(tb, do, d).call, redoing(tb, d).call
	count := func(call func(context.Context, string) error) float64 {
		return testing.AllocsPerRun(1000, func() {
			if err := call(tb.Context(), newID()); err != nil {
				tb.Fatal(err)
			}
		})
	}
	return count(run), count(again)
}
