//go:build linux

package faults

import (
	"bufio"
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem/driver"
)

// skew is how far the wall clock of this process is from that of the machine. The
// monotonic clock, by which package idem measures, does not jump.
var skew atomic.Int64

// skewing says that the drivers of this process are skewed.
var skewing bool

// follow sets the clock to what it is told, until the input ends.
func follow(in io.Reader) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if d, err := time.ParseDuration(lines.Text()); err == nil {
			skew.Store(int64(d))
		}
	}
}

// skewed is a driver whose host's clock jumps: one that judges leases by it.
type skewed[T any] struct {
	driver.TxDriver[T]
}

func jumped(now *time.Time) {
	if now.IsZero() {
		*now = time.Now().Add(time.Duration(skew.Load()))
	}
}

func (s skewed[T]) Claim(ctx context.Context, p driver.ClaimParams) (driver.Record, error) {
	jumped(&p.Now)
	return s.TxDriver.Claim(ctx, p)
}

func (s skewed[T]) Renew(ctx context.Context, p driver.RenewParams) error {
	jumped(&p.Now)
	return s.TxDriver.Renew(ctx, p)
}

func (s skewed[T]) Complete(ctx context.Context, p driver.CompleteParams) error {
	jumped(&p.Now)
	return s.TxDriver.Complete(ctx, p)
}

func (s skewed[T]) Release(ctx context.Context, p driver.ReleaseParams) error {
	jumped(&p.Now)
	return s.TxDriver.Release(ctx, p)
}

func (s skewed[T]) Get(ctx context.Context, p driver.GetParams) (driver.Record, error) {
	jumped(&p.Now)
	return s.TxDriver.Get(ctx, p)
}

func (s skewed[T]) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	jumped(&p.Now)
	return s.TxDriver.Purge(ctx, p)
}

func (s skewed[T]) BeginClaim(ctx context.Context, p driver.ClaimParams) (driver.Tx[T], driver.Record, error) {
	jumped(&p.Now)
	tx, rec, err := s.TxDriver.BeginClaim(ctx, p)
	if tx != nil {
		tx = skewedTx[T]{tx}
	}
	return tx, rec, err
}

func (s skewed[T]) BeginComplete(ctx context.Context, p driver.HolderParams) (driver.Tx[T], error) {
	jumped(&p.Now)
	tx, err := s.TxDriver.BeginComplete(ctx, p)
	if tx != nil {
		tx = skewedTx[T]{tx}
	}
	return tx, err
}

type skewedTx[T any] struct {
	driver.Tx[T]
}

func (t skewedTx[T]) Commit(ctx context.Context, p driver.CommitParams) error {
	jumped(&p.Now)
	return t.Tx.Commit(ctx, p)
}
