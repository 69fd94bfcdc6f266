package differential

import (
	"context"
	"errors"
	"fmt"

	"github.com/idem-go/idem/driver"
)

// finish inserts a business row and ends the transaction, which holds what was
// answered to begin it.
func (s step) finish(ctx context.Context, tx *openTx, p driver.CommitParams, begun string) string {
	err := tx.insert(ctx, p.Key.ID)
	switch {
	case err != nil:
		err = errors.Join(err, tx.rollback(ctx))
	case s.End == rollback:
		err = tx.rollback(ctx)
	default:
		err = tx.commit(ctx, p)
	}
	return fmt.Sprintf("%s, then %s: %s", begun, s.End, kind(err))
}

// settle is finish in the model. before is the record when the transaction began,
// during the one that it holds.
func (m *model) settle(s step, before, during driver.Record, p driver.CommitParams) (want string) {
	r := &m.records[s.Key]
	switch s.End {
	case rollback:
		*r = before
		return kind(nil)
	case commitOther:
		*r = before
		return kind(driver.ErrNotHolder)
	}
	after, err := during.AfterComplete(p.CompleteParams, m.now)
	if err != nil {
		panic("a transaction does not hold its key: " + err.Error())
	}
	*r = after
	if !p.Discard {
		m.rows[s.Key]++
	}
	return kind(nil)
}

func (m *model) commitParams(s step, h driver.HolderParams) driver.CommitParams {
	p := driver.CommitParams{CompleteParams: m.end(s, h), Discard: s.End == discard}
	p.Now = m.now
	if s.End == commitOther {
		p.Fence++
	}
	return p
}

// inTx claims in a transaction and ends it. A driver without transactions claims and
// completes: the record that is left is the same. What it would have to roll back it
// does not do.
func (m *model) inTx(s step) call {
	p := m.claimParams(s)
	before := m.records[s.Key]
	during, _ := before.AfterClaim(p, m.now)
	want := answer(during, p.Key, false, nil)
	h := driver.HolderParams{Key: p.Key, Token: p.Token, Fence: during.Fence}
	c := m.commitParams(s, h)
	granted := during.State == driver.StateInFlight && during.Token == p.Token
	if granted {
		want = fmt.Sprintf("%s, then %s: %s", want, s.End, m.settle(s, before, during, c))
		m.holders[s.Key] = append(m.holders[s.Key], h)
	}
	undone := s.End == rollback || s.End == commitOther
	return call{
		text: fmt.Sprintf("BeginClaim token=%s op=%s hold=%t resolve=%t, %s result=%q", brief(p.Token), p.Operation, p.Hold, p.Resolve, s.End, s.Result),
		ask: func(ctx context.Context, d session) string {
			switch {
			case d.tx == nil && granted && undone:
				return want
			case d.tx == nil:
				r, err := d.Claim(ctx, p)
				got := answer(r, p.Key, false, err)
				if r.HeldBy(p.Token, c.Fence) {
					got = fmt.Sprintf("%s, then %s: %s", got, s.End, kind(d.Complete(ctx, c.CompleteParams)))
				}
				return got
			}
			tx, r, err := d.tx.begin(ctx, p)
			got := answer(r, p.Key, false, err)
			if tx != nil {
				return s.finish(ctx, tx, c, got)
			}
			return got
		},
		want: want,
	}
}

// completeTx completes a leased claim in a transaction.
func (m *model) completeTx(s step) call {
	h := m.holder(s)
	r := m.records[s.Key]
	c := m.commitParams(s, h)
	held := r.HeldBy(h.Token, h.Fence)
	want := kind(driver.ErrNotHolder)
	if held {
		want = fmt.Sprintf("ok, then %s: %s", s.End, m.settle(s, r, r, c))
	}
	undone := s.End == rollback || s.End == commitOther
	return call{
		text: fmt.Sprintf("BeginComplete token=%s fence=%d, %s result=%q", brief(h.Token), h.Fence, s.End, s.Result),
		ask: func(ctx context.Context, d session) string {
			if d.tx == nil {
				switch r, err := d.Get(ctx, driver.GetParams{Key: h.Key, Now: h.Now}); {
				case err != nil:
					return kind(err)
				case !r.HeldBy(h.Token, h.Fence):
					return kind(driver.ErrNotHolder)
				case undone:
					return want
				}
				return fmt.Sprintf("ok, then %s: %s", s.End, kind(d.Complete(ctx, c.CompleteParams)))
			}
			tx, err := d.tx.beginComplete(ctx, h)
			if tx == nil {
				return kind(err)
			}
			return s.finish(ctx, tx, c, kind(err))
		},
		want: want,
	}
}
