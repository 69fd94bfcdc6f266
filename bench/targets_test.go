package bench

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// figures are what one run measured.
type figures struct {
	floors, peers             []*table
	near, far                 []*crowd
	allocsFirst, allocsReplay float64
}

func (f *figures) table(id string) *table {
	for _, t := range append(append([]*table{}, f.floors...), f.peers...) {
		if t.id == id {
			return t
		}
	}
	panic("no table " + id)
}

// costOf returns the counts of one subject.
func (f *figures) costOf(id, name string) cost {
	t := f.table(id)
	return *t.subjects[t.index(name)].cost
}

// counts fails the test when something that does not depend on time is not what it
// has to be.
func counts(tb testing.TB, f figures) {
	for _, want := range []struct {
		id, name       string
		trips, flushes float64
	}{
		{"pg-first", bareTx, 3, 1},
		{"pg-first", doTx, 3, 1},
		{"pg-first", doBatch, 1, 1},
		{"pg-first", do, 2, 2},
		{"pg-first", doThenTx, 4, 2},
		{"pg-replay", replayDo, 1, 0},
		{"redis-first", do, 2, unknown},
		{"redis-replay", replayDo, 1, unknown},
	} {
		got := f.costOf(want.id, want.name)
		if got.trips != want.trips {
			tb.Errorf("%s, %s: %v round trips, want %v", want.id, want.name, got.trips, want.trips)
		}
		if math.Abs(got.flushes-want.flushes) > 0.25 { // the server's own flushes are counted too
			tb.Errorf("%s, %s: %v flushes, want %v", want.id, want.name, got.flushes, want.flushes)
		}
	}
	for _, c := range f.near {
		if ops := quantile(c.ops, 0.5); c.counted && ops > 4 {
			tb.Errorf("%d duplicates, %s: %v calls to the store, want at most 4", duplicates, c.name, ops)
		}
	}
}

// target is what idem is meant to reach, and what it has reached.
type target struct {
	what, want, got string
	met             bool
}

// atMost is a target for the ratio of two subjects.
func (f *figures) atMost(what, id, name, floor string, limit float64) target {
	r := f.table(id).ratio(name, floor)
	return target{what, fmt.Sprintf("≤ %v ×", limit), number(r) + " ×", r <= limit}
}

// atLeast is one for how many times as fast name is as other.
func (f *figures) atLeast(what, id, name, other string, limit float64) target {
	r := f.table(id).ratio(other, name)
	return target{what, fmt.Sprintf("≥ %v ×", limit), number(r) + " ×", r >= limit}
}

func (f *figures) trips(what, id, name string, want float64) target {
	c := f.costOf(id, name)
	return target{what + ", round trips", fmt.Sprint(want), count(c.trips), c.trips == want}
}

func (f *figures) below(what, unit string, got, limit float64) target {
	return target{what, fmt.Sprintf("≤ %v %s", limit, unit), number(got) + " " + unit, got <= limit}
}

func (f *figures) targets() []target {
	flushes := f.costOf("pg-first", doTx).flushes
	core, again := f.table("memory-first"), f.table("memory-replay")
	all := []target{
		f.trips("PostgreSQL DoTx", "pg-first", doTx, 3),
		{"PostgreSQL DoTx, flushes", "1", count(flushes), flushes < 1.25},
		f.atMost("PostgreSQL DoTx beside the bare transaction, one caller", "pg-first", doTx, bareTx, 1.3),
		f.atMost("the same, 16 callers", "pg-first-16", doTx, bareTx, 1.6),
		f.atMost("the same, one caller, 1 ms of round-trip time added", "pg-first-rtt", doTx, bareTx, 1.08),
		f.atLeast("PostgreSQL DoTx beside the claim in its own commit, one caller: as fast", "pg-first", doTx, byHand, 1.8),
		f.trips("PostgreSQL DoBatch", "pg-first", doBatch, 1),
		f.atMost("PostgreSQL DoBatch beside the bare transaction, one caller", "pg-first", doBatch, bareTx, 0.8),
		f.trips("PostgreSQL Do", "pg-first", do, 2),
		f.trips("PostgreSQL DoThenTx", "pg-first", doThenTx, 4),
		f.trips("PostgreSQL replay", "pg-replay", replayDo, 1),
		f.atMost("PostgreSQL replay beside the bare SELECT", "pg-replay", replayDo, bareRead, 1.2),
		f.atMost("SQLite DoTx beside the bare transaction", "sqlite-first", doTx, bareTx, 1.35),
		f.atMost("SQLite replay beside the bare SELECT", "sqlite-replay", replayDo, bareRead, 1.5),
		f.atLeast("SQLite Do, 64 callers, beside one commit a step: as fast", "sqlite-64", do, oneCommitAStep, 8),
		f.atLeast("SQLite DoTx in groups, 64 callers, beside DoTx: as fast", "sqlite-64", groupedDoTx, doTx, 3),
		f.atLeast("bbolt Do, 64 callers, beside one commit a step: as fast", "bolt-64", do, oneCommitAStep, 8),
		f.atMost("bbolt DoTx beside the bare Update", "bolt-first", doTx, bareUpdate, 1.25),
		f.trips("Redis Do", "redis-first", do, 2),
		f.atMost("Redis Do beside SET NX and SET", "redis-first", do, bareSet, 1.25),
		f.trips("Redis replay", "redis-replay", replayDo, 1),
		f.atMost("Redis replay beside the bare GET", "redis-replay", replayDo, bareGet, 1.2),
		f.below("the core in memory, first run", "µs", core.time(core.index(do)), 2),
		f.below("the core in memory, first run", "allocations", f.allocsFirst, 12),
		f.below("the core in memory, replay", "µs", again.time(again.index(replayDo)), 1),
	}
	for _, c := range f.near {
		if c.ours {
			all = append(all, f.below(fmt.Sprintf("%d duplicates in one process, %s: the last answer after", duplicates, c.name), "ms", quantile(c.after, 0.5), 3))
		}
		if c.counted {
			all = append(all, f.below(fmt.Sprintf("%d duplicates in one process, %s: calls to the store", duplicates, c.name), "calls", quantile(c.ops, 0.5), 4))
		}
	}
	for _, c := range f.far {
		if c.ours {
			all = append(all, f.below(fmt.Sprintf("%d duplicates over %d processes, %s: the last answer after", duplicates, processes, c.name), "ms", quantile(c.after, 0.5), 30))
		}
	}
	for _, t := range f.peers {
		for _, s := range t.subjects[1:] {
			what := fmt.Sprintf("%s: %s beside %s: as fast", strings.TrimSuffix(t.title, ", one caller"), t.subjects[0].name, s.name)
			all = append(all, f.atLeast(what, t.id, t.subjects[0].name, s.name, 1))
		}
	}
	return all
}
