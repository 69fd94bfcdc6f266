//go:build linux

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/sqlite"
)

// tornSteps is the number of operations whose traces in a file are torn.
const tornSteps = 60

// A torn file is what a loss of power leaves: a part of what was written last. This
// looks at a copy of a file that was torn at a point up to which `sure` operations
// had been acknowledged. Each of them must be there, with its row; of the one after
// them everything or nothing; and nothing of the others.
func lookTorn(h *handle, sure int) error {
	rows, err := h.rows(ctx())
	if err != nil {
		return err
	}
	fresh := errors.New("it runs")
	for i := range min(sure+3, tornSteps) {
		key := fmt.Sprint(i)
		ran := func(context.Context) (string, error) { return "", idem.NotApplied(fresh) }
		res, err := h.call(ctx(), do, idem.Key{Scope: "faults", ID: key}, key, steps{
			fn: func(ctx context.Context, _ *idem.Run) (string, error) { return ran(ctx) },
		})
		switch {
		case err == nil && res.Replayed && res.Value == "outcome "+key:
			if i > sure {
				return fmt.Errorf("operation %d has an outcome, and %d had been acknowledged", i, sure)
			}
			if tornRows(i) != len(rows[key]) {
				return fmt.Errorf("operation %d has its outcome, and rows %v", i, rows[key])
			}
		case errors.Is(err, fresh), errors.Is(err, idem.ErrInFlight): // claimed, and no more
			if i < sure {
				return fmt.Errorf("operation %d was acknowledged, and is gone: %v", i, err)
			}
			if len(rows[key]) > 0 {
				return fmt.Errorf("operation %d has rows %v, and no outcome", i, rows[key])
			}
		default:
			return fmt.Errorf("operation %d: %+v, %w", i, res, err)
		}
	}
	return nil
}

// tornRows: every third operation has no transaction of its own.
func tornRows(i int) int { return min(i%3, 1) }

func tornStep(h *handle, i int) error {
	key := fmt.Sprint(i)
	w := [...]way{do, doTx, doThenTx}[i%3]
	_, err := h.call(ctx(), w, idem.Key{Scope: "faults", ID: key}, key, steps{
		fn: func(context.Context, *idem.Run) (string, error) { return "outcome " + key, nil },
		tx: func(ctx context.Context, insert func(context.Context) error) (string, error) {
			return "outcome " + key, insert(ctx)
		},
		then: func(ctx context.Context, v string, insert func(context.Context) error) (string, error) {
			return v, insert(ctx)
		},
	})
	return err
}

// SQLite: the log is cut anywhere, and what follows the cut is missing, zero, or
// something else.
func TestTornSQLite(t *testing.T) {
	rnd := rand.New(rand.NewPCG(*seed, 2))
	path := filepath.Join(t.TempDir(), "torn.db")
	h, err := open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	var sizes []int64 // of the log, after each operation
	for i := range tornSteps {
		if err := tornStep(h, i); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, info.Size())
	}
	// Closing these files drops the locks of the process: nobody writes any more.
	base, log := mustRead(t, path), mustRead(t, path+"-wal")
	if len(base) > 1<<20 || int64(len(log)) != sizes[tornSteps-1] || sizes[0] >= sizes[tornSteps-1] {
		t.Fatalf("the log was written back, or did not grow: %d, %v", len(log), sizes)
	}
	copies := 0
	for i := range min(max(16, *count/4), 400) {
		cut := rnd.IntN(len(log) + 1)
		if i%4 == 0 { // just at, before or behind the end of an operation
			cut = min(max(int(sizes[rnd.IntN(tornSteps)])+rnd.IntN(3)-1, 0), len(log))
		}
		sure := 0
		for sure < tornSteps && sizes[sure] <= int64(cut) {
			sure++
		}
		torn := bytes.Clone(log[:cut])
		switch tail := make([]byte, min(len(log)-cut, 1+rnd.IntN(3*4096))); rnd.IntN(3) {
		case 0:
			torn = append(torn, tail...)
		case 1:
			for j := range tail {
				tail[j] = byte(rnd.Uint32())
			}
			torn = append(torn, tail...)
		}
		name := filepath.Join(t.TempDir(), "torn.db")
		mustWrite(t, name, base)
		mustWrite(t, name+"-wal", torn)
		if err := atCopy("sqlite", name, sure); err != nil {
			t.Fatalf("log cut at %d of %d, %d operations acknowledged, seed %d: %v", cut, len(log), sure, *seed, err)
		}
		copies++
	}
	t.Logf("%d torn copies", copies)

	// The look notices what it is for: an operation that is gone, and half of one.
	name := filepath.Join(t.TempDir(), "torn.db")
	mustWrite(t, name, base)
	mustWrite(t, name+"-wal", log[:sizes[tornSteps/2]-1])
	if err := atCopy("sqlite", name, tornSteps/2+1); err == nil {
		t.Error("a lost operation was not noticed")
	}
	db, err := sqlite.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.DB().ExecContext(ctx(), "DELETE FROM business WHERE key = '1'"); err != nil {
		t.Fatal(err)
	}
	if err := atCopy("sqlite", name, tornSteps/2); err == nil {
		t.Error("an outcome without its row was not noticed")
	}
}

// bbolt writes the pages of a transaction in any order, flushes, and then writes one
// of the two pages that describe the file, and flushes.
func TestTornBolt(t *testing.T) {
	rnd := rand.New(rand.NewPCG(*seed, 3))
	path := filepath.Join(t.TempDir(), "torn.db")
	h, err := open("bolt", path)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	var images [][]byte // after each operation
	for i := range tornSteps {
		if err := tornStep(h, i); err != nil {
			t.Fatal(err)
		}
		images = append(images, mustRead(t, path))
	}
	const page = 4096
	copies, old := 0, 0
	for i := range min(max(16, *count/4), 400) {
		n := 1 + 3*rnd.IntN(tornSteps/3) // one transaction of bbolt's
		before, after := images[n-1], images[n]
		torn := bytes.Clone(before)
		torn = append(torn, make([]byte, len(after)-len(torn))...) // the file grows first
		all := i%3 > 0                                             // the pages have been flushed
		for at := 2 * page; at < len(after); at += page {
			switch {
			case bytes.Equal(torn[at:at+page], after[at:at+page]):
			case all:
				copy(torn[at:at+page], after[at:])
			case rnd.IntN(2) == 0:
				copy(torn[at:at+512*(1+rnd.IntN(8))], after[at:])
			}
		}
		sure := n
		if all { // the description is torn, too
			part := rnd.IntN(101)
			for at := 0; at < 2*page; at += page {
				copy(torn[at:at+part], after[at:])
			}
		} else {
			old++
		}
		name := filepath.Join(t.TempDir(), "torn.db")
		mustWrite(t, name, torn)
		if err := atCopy("bolt", name, sure); err != nil {
			t.Fatalf("copy %d of operation %d, flushed %t, seed %d: %v", i, n, all, *seed, err)
		}
		copies++
	}
	// A copy that is cut short is refused, or whole.
	whole := images[tornSteps-1]
	refused := 0
	for range 20 {
		name := filepath.Join(t.TempDir(), "torn.db")
		mustWrite(t, name, whole[:1+rnd.IntN(len(whole))])
		d, err := bolt.Open(name)
		if err != nil {
			refused++
			continue
		}
		d.Close()
		if err := atCopy("bolt", name, tornSteps); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d torn copies, %d of them without a new description; %d of 20 cut short were refused", copies, old, refused)
}

func atCopy(kind, name string, sure int) error {
	h, err := open(kind, name)
	if err != nil {
		return err
	}
	defer h.close()
	return lookTorn(h, sure)
}

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustWrite(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
