package idem_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/memory"
)

// The core's own cost: everything but the store.

func BenchmarkDoFirst(b *testing.B) {
	op := newOp[string](b, memory.New(), idem.Config{})
	fp := print("a")
	fn := func(context.Context, *idem.Run) (string, error) { return "result", nil }
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if _, err := op.Do(b.Context(), idem.Key{Scope: "bench", ID: strconv.Itoa(i)}, fp, fn); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDoReplay(b *testing.B) {
	op := newOp[string](b, memory.New(), idem.Config{})
	fn := func(context.Context, *idem.Run) (string, error) { return "result", nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := op.Do(b.Context(), key("k"), print("a"), fn); err != nil {
			b.Fatal(err)
		}
	}
}

// What one call over the memory driver may allocate, the store included; one of them
// is only there under the race detector.
const (
	maxFirstAllocs  = 10
	maxReplayAllocs = 4
)

func TestAllocations(t *testing.T) {
	const runs = 1000
	var ids [runs + 1]string // AllocsPerRun calls once more
	for i := range ids {
		ids[i] = "id-" + strconv.Itoa(i)
	}
	op := newOp[string](t, memory.New(), idem.Config{})
	fp, ctx, i := print("a"), t.Context(), 0
	fn := func(context.Context, *idem.Run) (string, error) { return "result", nil }
	do := func() {
		if _, err := op.Do(ctx, key(ids[i]), fp, fn); err != nil {
			t.Fatal(err)
		}
		i++
	}
	if n := testing.AllocsPerRun(runs, do); n > maxFirstAllocs {
		t.Errorf("a first run allocates %v times, want at most %d", n, maxFirstAllocs)
	}
	i = 0
	if n := testing.AllocsPerRun(runs, do); n > maxReplayAllocs {
		t.Errorf("a replay allocates %v times, want at most %d", n, maxReplayAllocs)
	}
}
