//go:build linux

package faults

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

// mutant is what is wrong with the drivers of this process; "" for nothing.
var mutant string

// broken is a driver with the fault of [mutant].
type broken[T any] struct {
	driver.TxDriver[T]
}

func (b *broken[T]) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	// Every other claim is judged by a clock that is fast.
	if (mutant == "takes live claims" || mutant == "completes what it does not hold") && p.Token[0]&1 == 1 {
		p.Now = time.Now().Add(2 * lease)
	}
	if mutant == "does not hold" {
		p.Hold = false
	}
	return b.TxDriver.Claim(ctx, p)
}

func (b *broken[T]) Complete(ctx context.Context, p driver.CompleteParams) error {
	if mutant == "loses an outcome" {
		return nil
	}
	err := b.TxDriver.Complete(ctx, p)
	if mutant == "completes what it does not hold" && errors.Is(err, driver.ErrNotHolder) {
		return nil
	}
	return err
}

func (b *broken[T]) Release(ctx context.Context, p driver.ReleaseParams) error {
	if mutant == "forgets an attempt" {
		p.Abandon = false
	}
	return b.TxDriver.Release(ctx, p)
}

func (b *broken[T]) BeginClaim(ctx context.Context, p driver.ClaimParams) (driver.Tx[T], driver.Record, error) {
	tx, rec, err := b.TxDriver.BeginClaim(ctx, p)
	if tx != nil {
		tx = &brokenTx[T]{tx}
	}
	return tx, rec, err
}

type brokenTx[T any] struct {
	driver.Tx[T]
}

func (b *brokenTx[T]) Commit(ctx context.Context, p driver.CommitParams) error {
	if mutant == "drops the rows of an outcome" {
		p.Discard = true
	}
	return b.Tx.Commit(ctx, p)
}

// A laboratory that lets a broken driver pass is worth nothing.
func TestMutants(t *testing.T) {
	for name, want := range map[string]string{
		"takes live claims":               "had its lease",
		"completes what it does not hold": "calls recorded an outcome",
		"loses an outcome":                "calls recorded an outcome",
		"forgets an attempt":              "as attempt 1 after the effect",
		"drops the rows of an outcome":    "business rows",
		"does not hold":                   "and nobody had resolved it",
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			r := &run{
				driver: "sqlite", kind: "sqlite", server: onDisk(t), processes: 2, handles: 2, mutant: name,
			}
			var got string
			for i := range uint64(10) { // what it takes on a machine that does other things, too
				r.segment(t, *seed+i, 0)
				if got = strings.Join(r.problems, "\n"); strings.Contains(got, want) {
					return
				}
			}
			t.Errorf("the judge does not say %q; it says %d things:\n%.2000s", want, len(r.problems), got)
		})
	}
}
