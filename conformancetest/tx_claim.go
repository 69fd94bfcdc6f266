package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idem-go/idem/driver"
)

// duplicateAtOnce checks that a duplicate is told, through d, that its key is in
// flight in an open transaction, without waiting for that.
func (e *env) duplicateAtOnce(ctx context.Context, d driver.Driver) error {
	tx, r, row, err := e.begun(ctx)
	if err != nil {
		return err
	}
	for _, p := range []driver.ClaimParams{e.claim(r.Key, t0), asksOther(e.claim(r.Key, t0))} {
		brief, cancel := context.WithTimeout(ctx, e.patience)
		got, err := e.refusedBegin(brief, d, p)
		cancel()
		if err == nil && got.State != driver.StateInFlight {
			err = fmt.Errorf("got %s, want one in flight", show(got))
		}
		if err == nil && len(got.Fingerprint) > 0 && string(got.Fingerprint) != string(r.Fingerprint) {
			err = fmt.Errorf("got the fingerprint %q, want none or that of the holder", got.Fingerprint)
		}
		if err != nil {
			_ = tx.rollback(ctx)
			return fmt.Errorf("a duplicate beside the open transaction: %w", err)
		}
	}
	if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
		return fmt.Errorf("commit by the holder: %w", err)
	}
	return e.rowsAre(ctx, row, 1)
}

var txClaimRules = []rule{
	{
		id:      "tx/guarantees",
		promise: "a driver with transactions states what a duplicate gets beside one",
		check: func(ctx context.Context, e *env) error {
			if g := e.d.Guarantees(); !g.AtomicWithBusinessData || g.TxDuplicate == driver.TxDuplicateNone {
				return fmt.Errorf("states atomic with business data: %t, about duplicates %q", g.AtomicWithBusinessData, g.TxDuplicate)
			}
			return nil
		},
	},
	{
		id:      "tx/claim",
		promise: "BeginClaim returns the granted claim, with everything it asked for",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			tx, r, err := e.beginGranted(ctx, e.d, p)
			if err != nil {
				return err
			}
			_ = tx.rollback(ctx)
			want, _ := driver.Record{}.AfterClaim(p, t0)
			if d := diff(r, want); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			return nil
		},
	},
	{
		id:      "tx/replay",
		promise: "BeginClaim on a complete key opens nothing, and returns the outcome",
		check: func(ctx context.Context, e *env) error {
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			want, _ := r.AfterComplete(commit(r, "outcome").CompleteParams, t0)
			for _, p := range []driver.ClaimParams{e.claim(r.Key, t0), asksOther(e.claim(r.Key, t0))} {
				got, err := e.refusedBegin(ctx, e.d, p)
				if err != nil {
					return err
				}
				if d := diff(got, want); d != "" {
					return fmt.Errorf("the record returned: %s", d)
				}
			}
			return e.rowsAre(ctx, row, 1)
		},
	},
	{
		id:      "tx/expired",
		promise: "BeginClaim on a tombstone opens nothing and returns no result, and is granted when the grace has ended",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			now := t0.Add(keep)
			r, err := e.refusedBegin(ctx, e.d, e.claim(p.Key, now))
			if err != nil {
				return err
			}
			if r.StateAt(now) != driver.StateExpired || r.Result != nil {
				return fmt.Errorf("got %s, want expired without a result", show(r))
			}
			next := e.claim(p.Key, now.Add(grace))
			tx, r, row, err := e.begunWith(ctx, next)
			if err != nil {
				return err
			}
			c := commit(r, "outcome")
			c.Now = next.Now
			if err := tx.commit(ctx, c); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			return e.stores(ctx, r, c)
		},
	},
	{
		id:      "tx/duplicate-at-once",
		promise: "a duplicate beside an open transaction is answered in flight at once",
		check: func(ctx context.Context, e *env) error {
			return e.duplicateAtOnce(ctx, e.d)
		},
	},
	{
		id:      "tx/duplicate-elsewhere",
		promise: "a duplicate at another handle is answered as stated: in flight at once, or, once the writer is done, with the outcome",
		needs:   aSecondHandle,
		check: func(ctx context.Context, e *env) error {
			if e.d.Guarantees().TxDuplicate == driver.TxDuplicateFailFast {
				return e.duplicateAtOnce(ctx, e.other())
			}
			tx, r, row, err := e.begun(ctx)
			if err != nil {
				return err
			}
			answer := make(chan error, 1)
			other := e.other()
			go func() {
				got, err := e.refusedBegin(ctx, other, e.claim(r.Key, t0))
				if err == nil && got.State != driver.StateComplete && got.State != driver.StateInFlight {
					err = fmt.Errorf("got %s, want the outcome", show(got))
				}
				answer <- err
			}()
			if err := tx.commit(ctx, commit(r, "outcome")); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			if err := <-answer; err != nil {
				return err
			}
			return e.rowsAre(ctx, row, 1)
		},
	},
	{
		id:      "tx/leased-in-flight",
		promise: "BeginClaim opens nothing while a lease is live, and says so",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			r, err := e.refusedBegin(ctx, e.d, e.claim(p.Key, t0.Add(lease-time.Microsecond)))
			if err != nil {
				return err
			}
			if d := diff(r, first); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			r, err = e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(r, first)
		},
	},
	{
		id:      "tx/takeover",
		promise: "BeginClaim takes an unknown leased claim over as attempt 2, and the stale holder is refused afterwards",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			next := e.claim(p.Key, t0.Add(lease))
			want, _ := first.AfterClaim(next, next.Now)
			tx, r, row, err := e.begunWith(ctx, next)
			if err != nil {
				return err
			}
			c := commit(r, "outcome")
			c.Now = next.Now
			commitErr := tx.commit(ctx, c)
			if d := diff(r, want); d != "" {
				return fmt.Errorf("the record returned: %s", d)
			}
			if commitErr != nil {
				return fmt.Errorf("commit: %w", commitErr)
			}
			if err := e.rowsAre(ctx, row, 1); err != nil {
				return err
			}
			if err := e.stores(ctx, r, c); err != nil {
				return err
			}
			return notHolder("Complete by the stale holder", e.d.Complete(ctx, complete(first, next.Now, []byte("stale"))))
		},
	},
	{
		id:      "tx/takeover-rolled-back",
		promise: "a takeover that is rolled back leaves the earlier claim as it was, and its holder can complete",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			now := t0.Add(lease)
			tx, _, _, err := e.begunWith(ctx, e.claim(p.Key, now))
			if err != nil {
				return err
			}
			if err := tx.rollback(ctx); err != nil {
				return fmt.Errorf("rollback: %w", err)
			}
			got, err := e.get(ctx, p.Key, now)
			if err != nil {
				return err
			}
			if err := unchanged(got, first); err != nil {
				return err
			}
			if err := e.d.Complete(ctx, complete(first, now, nil)); err != nil {
				return fmt.Errorf("complete by the earlier holder: %w", err)
			}
			return nil
		},
	},
	{
		id:      "tx/hold",
		promise: "BeginClaim does not take over what is held, and with Resolve it does",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			p.Hold = true
			if _, err := grant(ctx, e.d, p); err != nil {
				return err
			}
			next := e.claim(p.Key, t0.Add(lease))
			r, err := e.refusedBegin(ctx, e.d, next)
			if err != nil {
				return err
			}
			if r.StateAt(next.Now) != driver.StateUnknown {
				return fmt.Errorf("got %s, want unknown", show(r))
			}
			next = e.claim(p.Key, t0.Add(lease))
			next.Resolve = true
			tx, r, err := e.beginGranted(ctx, e.d, next)
			if err != nil {
				return err
			}
			_ = tx.rollback(ctx)
			if r.Attempt != 2 || !r.Hold {
				return fmt.Errorf("the resolving claim is %s, want attempt 2, still held", show(r))
			}
			return nil
		},
	},
	{
		id:      "tx/mismatch",
		promise: "BeginClaim of another request does not take an unknown outcome over, and learns what it was",
		check: func(ctx context.Context, e *env) error {
			p, first, err := e.held(ctx)
			if err != nil {
				return err
			}
			r, err := e.refusedBegin(ctx, e.d, asksOther(e.claim(p.Key, t0.Add(lease))))
			if err != nil {
				return err
			}
			if err := unchanged(r, first); err != nil {
				return err
			}
			return tellsFirst(r, p)
		},
	},
	{
		id:      "tx/params",
		promise: "BeginClaim and BeginComplete refuse bad parameters, and open nothing",
		check: func(ctx context.Context, e *env) error {
			for _, k := range badKeys {
				tx, _, err := e.tx.begin(ctx, e.d, e.claim(k, t0))
				if err := errors.Join(refusedParams("BeginClaim", err, driver.ErrInvalidKey), refusedTx(ctx, tx)); err != nil {
					return err
				}
				tx, err = e.tx.beginComplete(ctx, e.d, driver.HolderParams{Key: k, Token: driver.NewToken(), Fence: 1})
				if err := errors.Join(refusedParams("BeginComplete", err, driver.ErrInvalidKey), refusedTx(ctx, tx)); err != nil {
					return err
				}
			}
			p := e.claim(e.key(), t0)
			p.Lease = 0
			tx, _, err := e.tx.begin(ctx, e.d, p)
			if err := errors.Join(refusedParams("BeginClaim without a lease", err, driver.ErrInvalidParams), refusedTx(ctx, tx)); err != nil {
				return err
			}
			tx, err = e.tx.beginComplete(ctx, e.d, driver.HolderParams{Key: p.Key, Token: p.Token})
			if err := errors.Join(refusedParams("BeginComplete without a fence", err, driver.ErrInvalidParams), refusedTx(ctx, tx)); err != nil {
				return err
			}
			return e.freeSoon(ctx, p.Key)
		},
	},
	{
		id:      "tx/ended-context",
		promise: "BeginClaim and BeginComplete with an ended context return its error, and leave nothing open",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			for range 20 {
				tx, _, err := e.tx.begin(ended(ctx), e.d, p)
				if err := errors.Join(answersContext("BeginClaim", err, context.Canceled), refusedTx(ctx, tx)); err != nil {
					return err
				}
			}
			if err := e.freeSoon(ctx, p.Key); err != nil {
				return err
			}
			q, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			for range 20 {
				tx, err := e.tx.beginComplete(ended(ctx), e.d, holder(q.Key, r, t0))
				if err := errors.Join(answersContext("BeginComplete", err, context.Canceled), refusedTx(ctx, tx)); err != nil {
					return err
				}
			}
			return e.d.Complete(ctx, complete(r, t0, nil))
		},
	},
}
