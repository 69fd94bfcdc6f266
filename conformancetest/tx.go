package conformancetest

import (
	"context"
	"slices"

	"github.com/idem-go/idem/driver"
)

// txRules is the table of RunTx.
func txRules() []rule {
	return slices.Concat(txClaimRules, txCommitRules, txCompleteRules, txRaceRules)
}

// txAccess drives a driver.TxDriver[T] whatever its T, so that the rules need not
// be generic.
type txAccess struct {
	begin         func(ctx context.Context, d driver.Driver, p driver.ClaimParams) (*openTx, driver.Record, error)
	beginComplete func(ctx context.Context, d driver.Driver, p driver.HolderParams) (*openTx, error)
	count         func(ctx context.Context, d driver.Driver, row string) (int, error)
}

// openTx is a driver.Tx[T], or nil where the driver returned nil.
type openTx struct {
	insert   func(ctx context.Context, row string) error
	commit   func(ctx context.Context, p driver.CommitParams) error
	rollback func(ctx context.Context) error
}

func accessTo[T any](
	insert func(ctx context.Context, tx T, row string) error,
	count func(ctx context.Context, d driver.TxDriver[T], row string) (int, error),
) *txAccess {
	wrap := func(tx driver.Tx[T]) *openTx {
		if tx == nil {
			return nil
		}
		return &openTx{
			insert:   func(ctx context.Context, row string) error { return insert(ctx, tx.Handle(), row) },
			commit:   tx.Commit,
			rollback: tx.Rollback,
		}
	}
	return &txAccess{
		begin: func(ctx context.Context, d driver.Driver, p driver.ClaimParams) (*openTx, driver.Record, error) {
			tx, r, err := d.(driver.TxDriver[T]).BeginClaim(ctx, p)
			return wrap(tx), r, err
		},
		beginComplete: func(ctx context.Context, d driver.Driver, p driver.HolderParams) (*openTx, error) {
			tx, err := d.(driver.TxDriver[T]).BeginComplete(ctx, p)
			return wrap(tx), err
		},
		count: func(ctx context.Context, d driver.Driver, row string) (int, error) {
			return count(ctx, d.(driver.TxDriver[T]), row)
		},
	}
}
