// Package conformancetest checks that a driver keeps the promises of package
// driver.
//
// The suite is one table of rules. Each has a stable ID ("fence/stale-complete"),
// a promise of one line, and a check; each is a subtest, and a failure prints the
// promise that is broken. The author of a driver calls [Run], and [RunTx] too
// when the driver implements driver.TxDriver, and [RunBatch] when it implements
// driver.BatchDriver:
//
//	func TestConformance(t *testing.T) {
//		conformancetest.Run(t, conformancetest.Harness{
//			New: func(t testing.TB) driver.Driver { return mydriver.New(emptyStore(t)) },
//		})
//	}
//
// Rules run one after the other over one store, each under a scope of its own.
// Time is given in the parameters, as instants from 2040 on, so that expiry is
// checked without sleeping; some rules use the store's own clock. A rule that
// takes more than half a minute fails with a dump of all goroutines.
//
// The suite adds two flags to the test binary:
//
//	-conformance.report FILE   append the outcome of each rule to FILE, as JSON lines
//	-conformance.seed N        rerun the random rules with the seed that a failure printed
package conformancetest

import (
	"context"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/idem-go/idem/driver"
)

var (
	reportFlag = flag.String("conformance.report", "", "append the outcome of each conformance rule to this `file`, as JSON lines")
	seedFlag   = flag.Uint64("conformance.seed", 0, "`seed` of the random conformance rules; 0 picks one")
)

// Harness says how to make drivers of the kind under test. Only New is required.
type Harness struct {
	// New returns a driver over an empty store. It is called once a [Run], and may
	// use t.Cleanup. Rules share the store and use scopes of their own.
	New func(t testing.TB) driver.Driver

	// Second returns another driver over the store of d: with another pool, handle
	// or client, as another process would have. It is called at most once for each
	// d. nil: rules about two handles are not applicable.
	Second func(t testing.TB, d driver.Driver) driver.Driver

	// Reopen ends d and returns a driver over the same, durable store, as after a
	// restart of the process. nil: rules about reopening are not applicable.
	Reopen func(t testing.TB, d driver.Driver) driver.Driver

	// Config names the configuration under test, for the report: "exec", "wal".
	Config string

	// Skip maps the ID of a rule that is known to fail to the reason. The rule is
	// run all the same: when it passes, the test fails.
	Skip map[string]string
}

// TxHarness is a [Harness] for drivers with transactions of type T. New, Insert
// and Count are required.
type TxHarness[T any] struct {
	New    func(t testing.TB) driver.TxDriver[T]                       // see [Harness]
	Second func(t testing.TB, d driver.TxDriver[T]) driver.TxDriver[T] // see [Harness]
	Reopen func(t testing.TB, d driver.TxDriver[T]) driver.TxDriver[T] // see [Harness]

	// Insert writes one business row of that name through the transaction. Rows
	// are not unique: two inserts make two rows.
	Insert func(ctx context.Context, tx T, row string) error

	// Count returns how many rows of that name are committed in the store of d,
	// read outside any transaction.
	Count func(ctx context.Context, d driver.TxDriver[T], row string) (int, error)

	Config string            // see [Harness]
	Skip   map[string]string // see [Harness]
}

// BatchHarness is a [Harness] for drivers that take batches of type B. New,
// Insert, Fail and Count are required.
type BatchHarness[B any] struct {
	New    func(t testing.TB) driver.BatchDriver[B]                          // see [Harness]
	Second func(t testing.TB, d driver.BatchDriver[B]) driver.BatchDriver[B] // see [Harness]

	// Insert returns a batch that writes one business row of that name. Rows are
	// not unique: two inserts make two rows.
	Insert func(row string) B
	// Fail returns a batch that writes such a row, and of which a later statement fails.
	Fail func(row string) B
	// Count is [TxHarness.Count].
	Count func(ctx context.Context, d driver.BatchDriver[B], row string) (int, error)

	Config string            // see [Harness]
	Skip   map[string]string // see [Harness]
}

// Run checks every rule of [driver.Driver], and those of the optional
// capabilities that the driver has, as subtests of t.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.New == nil {
		t.Fatal("conformancetest: Harness.New is nil")
	}
	s := newSuite(h.New(t), rules)
	if h.Second != nil {
		s.makeSecond = func(d driver.Driver) driver.Driver { return h.Second(t, d) }
	}
	if h.Reopen != nil {
		s.makeReopened = func(d driver.Driver) driver.Driver { return h.Reopen(t, d) }
	}
	s.runAll(t, h.Config, h.Skip)
}

// RunTx checks the rules of [driver.TxDriver] as subtests of t. It does not repeat
// those of [Run].
func RunTx[T any](t *testing.T, h TxHarness[T]) {
	t.Helper()
	if h.New == nil || h.Insert == nil || h.Count == nil {
		t.Fatal("conformancetest: TxHarness needs New, Insert and Count")
	}
	s := newSuite(h.New(t), txRules)
	s.tx = accessTo(h.Insert, h.Count)
	if h.Second != nil {
		s.makeSecond = func(d driver.Driver) driver.Driver { return h.Second(t, d.(driver.TxDriver[T])) }
	}
	if h.Reopen != nil {
		s.makeReopened = func(d driver.Driver) driver.Driver { return h.Reopen(t, d.(driver.TxDriver[T])) }
	}
	s.runAll(t, h.Config, h.Skip)
}

// RunBatch checks the rules of [driver.BatchDriver] as subtests of t. It does not
// repeat those of [Run].
func RunBatch[B any](t *testing.T, h BatchHarness[B]) {
	t.Helper()
	if h.New == nil || h.Insert == nil || h.Fail == nil || h.Count == nil {
		t.Fatal("conformancetest: BatchHarness needs New, Insert, Fail and Count")
	}
	s := newSuite(h.New(t), batchRules)
	s.batch = batchAccessTo(h)
	if h.Second != nil {
		s.makeSecond = func(d driver.Driver) driver.Driver { return h.Second(t, d.(driver.BatchDriver[B])) }
	}
	s.runAll(t, h.Config, h.Skip)
}

// Rule is one promise that the suite checks.
type Rule struct {
	ID      string // stable, in the form area/name
	Area    string // "claim", "fence", …, "tx", "batch"
	Promise string // one line
}

// Rules returns the rules of [Run], followed by those of [RunTx] and [RunBatch].
func Rules() []Rule {
	var all []Rule
	for _, table := range [][]rule{rules(), txRules(), batchRules()} {
		for _, r := range table {
			all = append(all, r.public())
		}
	}
	return all
}

func pickSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return rand.Uint64()>>1 + 1
}
