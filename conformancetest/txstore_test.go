package conformancetest

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/idem-go/idem/driver"
)

// txHooks are the places where mutants break transactions.
type txHooks struct {
	single       bool // one writer; not a fault
	lockless     bool // an open transaction does not hold its key
	waits        bool // a duplicate waits for the transaction
	waitsOther   bool // a duplicate at another handle does
	rereads      bool // Commit looks whether the claim is still there
	autocommit   bool // rows are committed as they are inserted
	racyRows     bool // rows are counted in two steps
	reusable     bool // an ended transaction goes on
	txFence      bool // Commit checks token and fence
	thenFence    bool // BeginComplete does
	discards     bool // Discard undoes the rows
	stores       bool // Commit stores the outcome
	deafCommit   bool // Commit returns the context's error, after the rows
	callerCommit bool // Commit does so when the context of BeginClaim has ended
	deafRollback bool // Rollback with an ended context does nothing
	leaks        bool // Rollback leaves a goroutine
	keepsRows    bool // a refused Commit leaves the rows
	opensBeside  bool // a transaction comes back beside an error, or a refusal
	rollsBackAll bool // Rollback deletes the record

	txClaim    func(driver.Record, driver.ClaimParams, time.Time) (driver.Record, bool)
	txResult   func([]byte) []byte
	txReturned func(driver.Record) driver.Record
	txNow      func(time.Time) time.Time
}

func goodTxHooks() txHooks {
	return txHooks{
		rereads: true, txFence: true, thenFence: true, discards: true, stores: true,
		txClaim:    driver.Record.AfterClaim,
		txResult:   func(b []byte) []byte { return b },
		txReturned: func(r driver.Record) driver.Record { return r },
		txNow:      func(now time.Time) time.Time { return now },
	}
}

// mapTx is one open transaction, and its own handle for the application.
type mapTx struct {
	h      *handle
	caller context.Context
	key    string
	base   driver.Record // as stored when the transaction began
	claim  driver.Record
	rows   map[string]int
	ended  bool
	done   chan struct{}
}

// inFlight answers a duplicate beside an open transaction.
func (h *handle) inFlight(p driver.ClaimParams) driver.Record {
	return driver.Record{Key: p.Key, State: driver.StateInFlight, Now: h.now(p.Now)}
}

func (h *handle) BeginClaim(ctx context.Context, p driver.ClaimParams) (driver.Tx[*mapTx], driver.Record, error) {
	tx := &mapTx{h: h, caller: ctx, key: h.key(p.Key), rows: map[string]int{}, done: make(chan struct{})}
	if err := h.begin(ctx, p.Validate()); err != nil {
		if h.opensBeside {
			return tx, driver.Record{}, err
		}
		return nil, driver.Record{}, err
	}
	h.mu.Lock()
	for holder := h.open[tx.key]; holder != nil && !h.lockless; holder = h.open[tx.key] {
		if !h.waits && (!h.waitsOther || holder.h == h) && (!h.single || holder.h == h) {
			h.mu.Unlock()
			return nil, h.inFlight(p), nil
		}
		h.mu.Unlock()
		select {
		case <-holder.done:
		case <-ctx.Done():
			return nil, driver.Record{}, ctx.Err()
		}
		h.mu.Lock()
	}
	h.mu.Unlock()
	if h.single {
		select {
		case h.writer <- struct{}{}:
		case <-ctx.Done():
			return nil, driver.Record{}, ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[tx.key] != nil && !h.lockless {
		return nil, h.inFlight(p), nil
	}
	tx.base = h.records[tx.key]
	next, _ := h.txClaim(tx.base, p, h.now(h.txNow(p.Now)))
	if !granted(next, p) {
		if h.single {
			<-h.writer
		}
		if h.opensBeside {
			return tx, h.copied(next), nil
		}
		return nil, h.copied(next), nil
	}
	tx.claim = next
	h.open[tx.key] = tx
	h.pause()
	return tx, h.txReturned(h.copied(next)), nil
}

func (h *handle) BeginComplete(ctx context.Context, p driver.HolderParams) (driver.Tx[*mapTx], error) {
	tx := &mapTx{h: h, caller: ctx, key: h.key(p.Key), rows: map[string]int{}, done: make(chan struct{})}
	if err := h.begin(ctx, p.Validate()); err != nil {
		if h.opensBeside {
			return tx, err
		}
		return nil, err
	}
	if h.single {
		select {
		case h.writer <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	tx.base = h.records[tx.key]
	tx.claim = tx.base
	if h.thenFence && !tx.base.HeldBy(p.Token, p.Fence) {
		if h.single {
			<-h.writer
		}
		return nil, driver.ErrNotHolder
	}
	h.open[tx.key] = tx
	return tx, nil
}

func (tx *mapTx) Handle() *mapTx { return tx }

func (tx *mapTx) insert(row string) error {
	if tx.h.autocommit {
		tx.h.addRows(map[string]int{row: 1})
		return nil
	}
	tx.rows[row]++
	return nil
}

// addRows commits rows.
func (h *handle) addRows(rows map[string]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := maps.Clone(h.rows)
	if h.racyRows {
		h.mu.Unlock()
		time.Sleep(time.Millisecond)
		h.mu.Lock()
	}
	for row, n := range rows {
		h.rows[row] = before[row] + n
	}
}

// end lets go of the key.
func (tx *mapTx) end() {
	tx.ended = true
	if tx.h.open[tx.key] == tx {
		delete(tx.h.open, tx.key)
	}
	close(tx.done)
	if tx.h.single {
		<-tx.h.writer
	}
}

func (tx *mapTx) Commit(ctx context.Context, p driver.CommitParams) error {
	h := tx.h
	if tx.ended {
		if h.reusable {
			h.addRows(tx.rows)
			return nil
		}
		return errors.New("the transaction has ended")
	}
	if h.deafCommit && ctx.Err() != nil || h.callerCommit && tx.caller.Err() != nil {
		h.addRows(tx.rows)
	}
	err := h.begin(ctx, p.Validate())
	if err == nil && h.callerCommit {
		err = tx.caller.Err()
	}
	h.mu.Lock()
	if err == nil && h.txFence && !tx.claim.HeldBy(p.Token, p.Fence) {
		err = driver.ErrNotHolder
	}
	if now := h.records[tx.key]; err == nil && h.rereads && (now.State != tx.base.State || now.Fence != tx.base.Fence) {
		err = driver.ErrNotHolder
	}
	if err == nil && h.stores {
		p.Token, p.Fence = tx.claim.Token, tx.claim.Fence
		p.Result = h.txResult(p.Result)
		var next driver.Record
		if next, err = tx.claim.AfterComplete(p.CompleteParams, h.now(p.Now)); err == nil {
			h.records[tx.key] = next
		}
	}
	h.mu.Unlock()
	if (err == nil || h.keepsRows) && (!p.Discard || !h.discards) {
		h.addRows(tx.rows)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	tx.end()
	return err
}

func (tx *mapTx) Rollback(ctx context.Context) error {
	h := tx.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if tx.ended {
		if h.reusable {
			clear(h.rows)
		}
		return errors.New("the transaction has ended")
	}
	if h.deafRollback && ctx.Err() != nil {
		return ctx.Err()
	}
	if h.rollsBackAll {
		delete(h.records, tx.key)
	}
	if h.leaks {
		go func() { select {} }()
	}
	tx.end()
	return nil
}
