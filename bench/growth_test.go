package bench

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
)

var (
	sizes  = flag.String("sizes", "100,1000", "how many complete keys the stores of TestGrowth hold, from the least")
	growth = flag.String("growth", "", "the file whose parts between markers TestGrowth writes; empty writes nothing")
)

// grown is a store that holds n complete records, of the keys grownKey(0) and up.
type grown struct {
	n      int
	drv    driver.Driver
	doTx   *subject // nil where there are no transactions
	parts  []part
	logged func() int64 // bytes of write-ahead log so far; nil where none is counted
	// expiring adds records that the store deletes by itself, evenly over a time, and returns
	// how many of all such it has deleted; nil where deleting is for Purge.
	expiring func(tb testing.TB, count int, over time.Duration)
	expired  func(tb testing.TB) int
}

// part is a part of what a store takes, in bytes.
type part struct {
	name  string
	bytes int64
}

// retained is the contract of the keys that a store has grown by: none is due.
// Its lease outlasts a pause of the whole machine.
var retained = idem.Config{Name: config.Name, Retention: 30 * 24 * time.Hour, Lease: time.Hour}

// grownAge is how much older the first record is than the last.
const grownAge = time.Hour

// grownHash is the primary key of a record.
func grownHash(i int) driver.KeyHash { return key(grownID(i)).Hash("", nil) }

// loadBatch is how many records a transaction of a loader writes.
const loadBatch = 100_000

// grownID has the length of a UUID, and that of every other one, so that a record of one key
// becomes that of another by replacing bytes.
func grownID(i int) string { return fmt.Sprintf("6f1c7a52-93be-4d07-8a41-%012d", i) }

// grower makes a store that holds n records. It runs the first operation through
// idem and multiplies what was stored, so that it need not know how records look.
type grower func(tb testing.TB, n int) *grown

// each is for stores that share nothing.
func each(g grower) func(testing.TB) grower { return func(testing.TB) grower { return g } }

// seedRecord runs the operation whose record is multiplied.
func seedRecord(tb testing.TB, d driver.Driver) {
	tb.Helper()
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](d, retained))
	res, err := op.Do(tb.Context(), key(grownID(0)), print(), runs)
	if err := is(false, res, err); err != nil {
		tb.Fatal(err)
	}
}

// TestGrowth measures first runs and replays in stores of several sizes, and what
// purging costs the claims of one of them:
//
//	make growth
//
// Without flags the sizes are small, and the figures mean nothing: it fails when a
// record that was loaded is not replayed, or purging deletes other records than
// those that are due.
func TestGrowth(t *testing.T) {
	var all []int
	for s := range strings.SplitSeq(*sizes, ",") {
		all = append(all, must[int](t)(strconv.Atoi(s)))
	}
	for _, store := range []struct {
		id  string
		new func(testing.TB) grower
	}{{"postgres", growPostgres}, {"sqlite", each(growSQLite)}, {"bolt", each(growBolt)}, {"redis", each(growRedis)}} {
		t.Run(store.id, func(t *testing.T) {
			grow := store.new(t)
			var stores []*grown
			for _, n := range all {
				began := time.Now()
				g := grow(t, n)
				g.sample(t)
				stores = append(stores, g)
				t.Logf("%d records in %v", n, time.Since(began).Round(time.Millisecond))
			}
			t.Log("loaded")
			section := measureGrowth(t, stores) + measureSteady(t, stores[len(stores)/2])
			t.Log("\n" + section)
			if *growth != "" && !t.Failed() {
				writeSection(t, *growth, store.id, section)
			}
		})
	}
}

// sample replays some of the records, which a loader has to have written as the driver does.
func (g *grown) sample(tb testing.TB) {
	tb.Helper()
	again := g.replay(tb)
	for range 100 {
		if err := again.call(tb.Context(), ""); err != nil {
			tb.Fatalf("of %d records: %v", g.n, err)
		}
	}
}

// replay repeats operations of keys at random, each as probable as the other.
func (g *grown) replay(tb testing.TB) subject {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](g.drv, retained))
	return subject{name: "replay", call: func(ctx context.Context, _ string) error {
		res, err := op.Do(ctx, key(grownID(rand.IntN(g.n))), print(), runs)
		return is(true, res, err)
	}}
}

func (g *grown) do(tb testing.TB) subject {
	op := must[*idem.Operation[[]byte]](tb)(idem.New[[]byte](g.drv, retained))
	return subject{name: do, call: func(ctx context.Context, id string) error {
		res, err := op.Do(ctx, key(id), print(), runs)
		return is(false, res, err)
	}}
}

// inTx is DoTx with a function that writes nothing of its own.
func inTx[T any](tb testing.TB, d driver.TxDriver[T]) *subject {
	op := must[*idem.TxOperation[[]byte, T]](tb)(idem.NewTx[[]byte](d, retained))
	return &subject{name: doTx, call: func(ctx context.Context, id string) error {
		res, err := op.DoTx(ctx, key(id), print(), func(context.Context, T) ([]byte, error) { return result, nil })
		return is(false, res, err)
	}}
}

// flat is how many times as long a call may take in the largest store.
const flat = 1.3

func measureGrowth(tb testing.TB, stores []*grown) string {
	rows := []*table{{id: "first", title: "first run, `Do`"}, {id: "first-tx", title: "first run, `DoTx`"}, {id: "replay", title: "replay"}}
	for _, g := range stores {
		rows[0].subjects = append(rows[0].subjects, g.do(tb))
		if g.doTx != nil {
			rows[1].subjects = append(rows[1].subjects, *g.doTx)
		}
		rows[2].subjects = append(rows[2].subjects, g.replay(tb))
	}
	if stores[0].doTx == nil {
		rows = []*table{rows[0], rows[2]}
	}
	for _, t := range rows {
		t.callers = 1
	}
	for round := range *rounds {
		for _, t := range rows {
			t.measure(tb, round)
		}
	}
	var b strings.Builder
	b.WriteString("| complete keys |")
	for _, g := range stores {
		fmt.Fprintf(&b, " %s |", thousands(g.n))
	}
	b.WriteString(" largest : smallest | middle half | ≤ 1.3 |\n| --- |" + strings.Repeat(" ---: |", len(stores)+2) + " --- |\n")
	for _, t := range rows {
		fmt.Fprintf(&b, "| %s, µs |", t.title)
		for i := range stores {
			fmt.Fprintf(&b, " %s |", number(t.time(i)))
		}
		r := t.ratios(len(stores)-1, 0)
		verdict := "met"
		if quantile(r, 0.5) > flat {
			verdict = "**missed**"
		}
		fmt.Fprintf(&b, " %s | %s–%s | %s |\n", number(quantile(r, 0.5)), number(quantile(r, 0.25)), number(quantile(r, 0.75)), verdict)
	}
	line := func(name string, cell func(g *grown) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, g := range stores {
			fmt.Fprintf(&b, " %s |", cell(g))
		}
		b.WriteString(" | | |\n")
	}
	for i, p := range stores[0].parts {
		line(p.name+", bytes per key", func(g *grown) string { return number(float64(g.parts[i].bytes) / float64(g.n)) })
	}
	if stores[0].logged != nil {
		line("write-ahead log, bytes per first run (`Do`)", func(g *grown) string { return number(g.logOf(tb, g.do(tb))) })
		line("the same, `DoTx`", func(g *grown) string { return number(g.logOf(tb, *g.doTx)) })
	}
	line("`Purge` that finds nothing due, µs", func(g *grown) string { return number(g.idlePurge(tb)) })
	return b.String()
}

// logOf returns how many bytes of log a call writes, over as many calls as the
// smallest store might have seen between two checkpoints.
func (g *grown) logOf(tb testing.TB, s subject) float64 {
	calls := min(1000, g.n/10)
	before := g.logged()
	for range calls {
		if err := s.call(tb.Context(), newID()); err != nil {
			tb.Fatal(err)
		}
	}
	return float64(g.logged()-before) / float64(calls)
}

func (g *grown) idlePurge(tb testing.TB) float64 {
	var each []float64
	for range 5 {
		began := time.Now()
		if _, err := g.drv.Purge(tb.Context(), driver.PurgeParams{Limit: 1000}); err != nil {
			tb.Fatal(err)
		}
		each = append(each, float64(time.Since(began).Microseconds()))
	}
	return quantile(each, 0.5)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// writeSection replaces what stands between the markers of a store in a document.
func writeSection(tb testing.TB, name, store, section string) {
	tb.Helper()
	doc := string(must[[]byte](tb)(os.ReadFile(name)))
	from, to := "<!-- growth "+store+": written by bench (make growth); edits are lost -->\n", "<!-- end of growth "+store+" -->\n"
	head, rest, found := strings.Cut(doc, from)
	_, tail, ends := strings.Cut(rest, to)
	if !found || !ends {
		tb.Fatalf("%s has no markers for %s", name, store)
	}
	if err := os.WriteFile(name, []byte(head+from+"\n"+section+"\n"+to+tail), 0o644); err != nil {
		tb.Fatal(err)
	}
}
