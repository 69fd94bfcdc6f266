package driver

import "context"

// Driver is what every store implements. All methods are safe for concurrent
// use, return promptly when ctx ends, and change nothing when they return an
// error of a definite kind ([ErrNotHolder], [ErrInvalidParams], …). After any
// other error the change may or may not have happened; the caller sends the verb
// again with the same token to find out.
type Driver interface {
	// Claim grants the key to p.Token when nobody holds it, and returns the
	// record as it stands afterwards. The claim was granted when the returned
	// record is in flight with Token equal to p.Token; otherwise the record
	// tells why not, and nothing was changed. A Claim repeated with a token that
	// already holds the key is granted again, with the same fence and attempt,
	// and its lease is extended. The rules are those of [Record.AfterClaim].
	Claim(ctx context.Context, p ClaimParams) (Record, error)

	// Renew makes the lease end p.Lease from now. It returns [ErrNotHolder] when
	// the record is no longer in flight under p's token and fence. A lease that
	// has ended, but was not taken over, can be renewed.
	Renew(ctx context.Context, p RenewParams) error

	// Complete stores the outcome and ends the claim. It returns [ErrNotHolder]
	// when the record is not in flight under p's token and fence, unless it is
	// complete under them: then an earlier send arrived, and the answer is nil.
	Complete(ctx context.Context, p CompleteParams) error

	// Release ends the claim without an outcome: the key is absent again or,
	// with p.Abandon, its outcome is unknown from now on. Releasing again with
	// the same token and fence is nil; otherwise [ErrNotHolder].
	Release(ctx context.Context, p ReleaseParams) error

	// Get returns the record of a key, and a record in [StateAbsent] when there
	// is none. It never changes anything. Record.Now is always set.
	Get(ctx context.Context, p GetParams) (Record, error)

	// Forget deletes a complete or expired record, named by its key, token and
	// fence as Get returned them. No record is nil; a record in flight, or
	// another one, is [ErrNotHolder].
	Forget(ctx context.Context, p ForgetParams) error

	// Purge deletes up to p.Limit records that are due (see [Record.AfterPurge])
	// and drops the results of those that have expired but are kept for their
	// grace. It returns how many records it deleted or dropped; fewer than
	// p.Limit means that nothing more was due. It never touches a live claim, nor
	// one that is held until someone resolves it.
	Purge(ctx context.Context, p PurgeParams) (int, error)

	// Guarantees states what the driver promises. The conformance suite checks it.
	Guarantees() Guarantees
}

// TxDriver is a Driver whose store has transactions that business data can
// join. T is the transaction type handed to the application.
type TxDriver[T any] interface {
	Driver

	// BeginClaim opens a transaction and claims the key in it, in one round trip
	// where the store has any. When the claim is granted, the returned Tx is not
	// nil, holds the key until it ends, and the record is in flight under p.Token.
	// Otherwise Tx is nil, no transaction is left open, and the record tells why.
	//
	// A duplicate must be answered without waiting for the transaction that
	// holds the key, where the store can do that (see [Guarantees.TxDuplicate]).
	// The record is then in flight; its Fingerprint, Operation and LeaseUntil are
	// zero when the driver cannot know them.
	//
	// The transaction outlives ctx, which bounds only its opening; so it does for
	// BeginComplete. Commit and Rollback are given contexts of their own.
	BeginClaim(ctx context.Context, p ClaimParams) (Tx[T], Record, error)

	// BeginComplete opens a transaction for the holder of a leased claim, in one
	// round trip, and makes sure that nobody else can take the key over before it
	// ends. It returns [ErrNotHolder], and leaves nothing open, when the claim is
	// no longer the caller's.
	BeginComplete(ctx context.Context, p HolderParams) (Tx[T], error)
}

// Tx is one open transaction that holds a key. It is used by one goroutine and
// ended exactly once, by Commit or by Rollback.
type Tx[T any] interface {
	// Handle returns the store's transaction, for business reads and writes. The
	// application must not end it; a driver refuses that where it can.
	Handle() T

	// Commit stores the outcome and commits, in one round trip and one flush.
	//
	// nil means that the business writes and the outcome are committed. An error
	// that matches [ErrOutcomeUnknown] means that the driver lost the connection
	// during the commit and could not find out, by looking the record up, how it
	// ended. Any other error is definite: everything was rolled back.
	// [ErrNotHolder] says that the claim was not the caller's any more.
	Commit(ctx context.Context, p CommitParams) error

	// Rollback undoes everything done in the transaction, the claim included.
	Rollback(ctx context.Context) error
}

// Lister is the optional capability of listing records, for a support desk that
// looks for outcomes that are unknown. Without it the core answers
// errors.ErrUnsupported.
type Lister interface {
	// List returns up to p.Limit records whose state, judged now, is p.State,
	// and a cursor for the next page; an empty cursor means that there are no more.
	// Results may be omitted from the records. The order is the driver's own.
	List(ctx context.Context, p ListParams) (records []Record, next string, err error)
}

// Retrier is the optional capability of telling which of the errors that
// business statements get from the store say that the transaction was lost for a
// passing reason (a serialization failure, a deadlock, a busy writer). The core
// asks about the error that fn returned inside a transaction, and adds
// [ErrRetryable] to it. Without it fn's error is returned as it is.
type Retrier interface {
	// Retryable reports whether err says so. It decides on the store's codes.
	Retryable(err error) bool
}

// Waiter is the optional capability of being told by the store that a claim has
// ended. Without it the core polls with Get.
type Waiter interface {
	// Wait returns nil when the record of p.Key may no longer be in flight under
	// p.Fence, and ctx's error when ctx ends first. It may return early.
	Wait(ctx context.Context, p WaitParams) error
}
