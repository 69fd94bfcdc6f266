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
