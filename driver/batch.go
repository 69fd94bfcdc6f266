package driver

import (
	"context"
	"fmt"
	"time"
)

// BatchDriver is a Driver whose store can run a whole operation in one round trip
// when its business statements and its result are known in advance. B is the type
// of a batch of statements in the store's own terms.
type BatchDriver[B any] interface {
	Driver

	// RunBatch claims the key, runs the statements of batch and stores the outcome,
	// all in one transaction: everything is committed, or nothing. The claim is
	// granted as [Record.AfterClaim] says; then the record returned is complete,
	// with Token equal to p.Token. Otherwise the record tells why not, as that of
	// [TxDriver.BeginClaim] does, and no statement has had an effect. A RunBatch
	// repeated with a token under which the record is complete changes nothing, and
	// returns that record.
	//
	// The driver reads batch and does not change it. An error of a statement is a
	// [*StatementError], and everything was rolled back. An error that matches
	// [ErrOutcomeUnknown] means that the driver lost the connection and could not
	// find out, by looking the record up, how the commit ended. Any other error is
	// definite: everything was rolled back.
	RunBatch(ctx context.Context, p BatchParams, batch B) (Record, error)
}

// BatchParams are the parameters of RunBatch.
type BatchParams struct {
	ClaimParams
	Result []byte // the core's encoding; opaque, and stored exactly
	// Keep is how long the result is kept, from now. ClaimParams.Retention is not
	// used: the record is never stored in flight.
	Keep  time.Duration
	Grace time.Duration // how long the key refuses to run after that
}

// Validate reports what is wrong with p; see [HolderParams.Validate].
func (p BatchParams) Validate() error {
	if err := p.ClaimParams.Validate(); err != nil {
		return err
	}
	return p.complete(1).Validate()
}

// complete returns the parameters of the completion that is part of a batch.
func (p BatchParams) complete(fence int64) CompleteParams {
	return CompleteParams{
		HolderParams: HolderParams{Key: p.Key, Token: p.Token, Fence: fence, Now: p.Now},
		Result:       p.Result, Retention: p.Keep, Grace: p.Grace,
	}
}

// AfterBatch returns the record after a batch at now, and whether it was granted:
// [Record.AfterClaim] and [Record.AfterComplete] in one step. The record of a batch
// that was not granted is what AfterClaim says.
func (r Record) AfterBatch(p BatchParams, now time.Time) (Record, bool) {
	claimed, write := r.AfterClaim(p.ClaimParams, now)
	if !write || !claimed.HeldBy(p.Token, claimed.Fence) {
		return claimed, false
	}
	done, err := claimed.AfterComplete(p.complete(claimed.Fence), now)
	return done, err == nil
}

// StatementError is the store's refusal of a statement of a batch.
type StatementError struct {
	Statement int // its place in the batch, counted from 0; -1 when the store did not say
	Err       error
}

// Error names the statement.
func (e *StatementError) Error() string {
	if e.Statement < 0 {
		return fmt.Sprintf("a statement of the batch: %v", e.Err)
	}
	return fmt.Sprintf("statement %d of the batch: %v", e.Statement, e.Err)
}

// Unwrap returns the store's error.
func (e *StatementError) Unwrap() error { return e.Err }
