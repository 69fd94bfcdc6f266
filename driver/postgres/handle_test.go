package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/proxy"
)

func TestHandleIsATransaction(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	h, ctx := tx.Handle(), t.Context()

	inner, err := h.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := insert(ctx, inner, "undone"); err != nil {
		t.Error(err)
	}
	if err := inner.Rollback(ctx); err != nil {
		t.Error(err)
	}
	if err := inner.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a second Rollback of a savepoint = %v", err)
	}
	if err := pgx.BeginFunc(ctx, h, func(tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return insert(ctx, tx, "kept") })
	}); err != nil {
		t.Error(err)
	}
	if n, err := h.CopyFrom(ctx, pgx.Identifier{"business"}, []string{"name"}, pgx.CopyFromRows([][]any{{"kept"}})); n != 1 || err != nil {
		t.Errorf("CopyFrom = %d, %v", n, err)
	}
	var b pgx.Batch
	b.Queue("INSERT INTO business VALUES ('kept')")
	if err := h.SendBatch(ctx, &b).Close(); err != nil {
		t.Error(err)
	}
	if _, err := h.Prepare(ctx, "count_business", "SELECT count(*) FROM business"); err != nil {
		t.Error(err)
	}
	var n int
	if err := h.QueryRow(ctx, "count_business").Scan(&n); err != nil || n != 3 {
		t.Errorf("%d rows inside, %v", n, err)
	}
	rows, err := h.Query(ctx, "SELECT name FROM business")
	if err != nil {
		t.Fatal(err)
	}
	if names, err := pgx.CollectRows(rows, pgx.RowTo[string]); len(names) != 3 || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	large := h.LargeObjects()
	oid, err := large.Create(ctx, 0)
	if err != nil {
		t.Errorf("a large object: %v", err)
	}
	if h.Conn().PgConn().TxStatus() != 'T' {
		t.Error("Conn is not inside the transaction")
	}
	if err := tx.Commit(ctx, commit(p.Key, r, "result")); err != nil {
		t.Fatal(err)
	}
	if n := s.rows(t, "kept"); n != 3 {
		t.Errorf("%d rows", n)
	}
	if err := s.pool.QueryRow(ctx, "SELECT count(*) FROM pg_largeobject_metadata WHERE oid = $1", oid).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d large objects, %v", n, err)
	}
}

func TestHandleCannotEndTheTransaction(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	h, ctx := tx.Handle(), t.Context()
	if err := insert(ctx, h, p.Key.ID); err != nil {
		t.Fatal(err)
	}
	if err := h.Commit(ctx); !errors.Is(err, postgres.ErrManagedTx) {
		t.Errorf("Commit = %v", err)
	}
	if err := h.Rollback(ctx); !errors.Is(err, postgres.ErrManagedTx) {
		t.Errorf("Rollback = %v", err)
	}
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	if err := h.SendBatch(ctx, &b).Close(); !errors.Is(err, postgres.ErrManagedTx) {
		t.Errorf("a batch that begins a transaction = %v", err)
	}
	if err := tx.Commit(ctx, commit(p.Key, r, "result")); err != nil {
		t.Error(err)
	}
	if n := s.rows(t, p.Key.ID); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestHandleIsOfNoUseAfterTheEnd(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	h, ctx := tx.Handle(), t.Context()
	if err := tx.Commit(ctx, commit(p.Key, r, "result")); err != nil {
		t.Fatal(err)
	}
	closed := map[string]func() error{
		"Exec":     func() error { _, err := h.Exec(ctx, "SELECT 1"); return err },
		"Query":    func() error { _, err := h.Query(ctx, "SELECT 1"); return err },
		"Rows.Err": func() error { rows, _ := h.Query(ctx, "SELECT 1"); rows.Close(); rows.Next(); return rows.Err() },
		"Values":   func() error { rows, _ := h.Query(ctx, "SELECT 1"); _, err := rows.Values(); return err },
		"QueryRow": func() error { var n int; return h.QueryRow(ctx, "SELECT 1").Scan(&n) },
		"Begin":    func() error { _, err := h.Begin(ctx); return err },
		"Prepare":  func() error { _, err := h.Prepare(ctx, "x", "SELECT 1"); return err },
		"CopyFrom": func() error { _, err := h.CopyFrom(ctx, nil, nil, nil); return err },
		"Batch":    func() error { return h.SendBatch(ctx, &pgx.Batch{}).Close() },
		"Commit":   func() error { return h.Commit(ctx) },
		"Rollback": func() error { return h.Rollback(ctx) },
		"the driver's Commit": func() error {
			return tx.Commit(ctx, commit(p.Key, r, "result"))
		},
		"the driver's Rollback": func() error { return tx.Rollback(ctx) },
	}
	for name, call := range closed {
		if err := call(); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s = %v, want ErrTxClosed", name, err)
		}
	}
}

// What the driver cannot refuse, it notices.
func TestTransactionEndedBySQL(t *testing.T) {
	s := open(t, setup{})
	for _, sql := range []string{"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "ROLLBACK; BEGIN"} {
		for _, discard := range []bool{false, true} {
			p := s.claim()
			tx, r := s.mustBegin(t, p)
			if _, err := tx.Handle().Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			c := commit(p.Key, r, "result")
			c.Discard = discard
			if err := tx.Commit(t.Context(), c); !errors.Is(err, driver.ErrOutcomeUnknown) {
				t.Errorf("Commit after %s, discard %v = %v", sql, discard, err)
			}
			s.stateIs(t, p.Key, driver.StateAbsent)
		}
	}
}

func TestCommitUnderOtherParams(t *testing.T) {
	s := open(t, setup{})
	for name, change := range map[string]func(*driver.CommitParams){
		"token":   func(c *driver.CommitParams) { c.Token = driver.NewToken() },
		"fence":   func(c *driver.CommitParams) { c.Fence++ },
		"key":     func(c *driver.CommitParams) { c.Key.ID = "another" },
		"invalid": func(c *driver.CommitParams) { c.Retention = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			p := s.claim()
			tx, r := s.mustBegin(t, p)
			if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
				t.Fatal(err)
			}
			c := commit(p.Key, r, "result")
			change(&c)
			want := driver.ErrNotHolder
			if name == "invalid" {
				want = driver.ErrInvalidParams
			}
			if err := tx.Commit(t.Context(), c); !errors.Is(err, want) {
				t.Errorf("Commit = %v, want %v", err, want)
			}
			if n := s.rows(t, p.Key.ID); n != 0 {
				t.Errorf("%d business rows", n)
			}
			s.stateIs(t, p.Key, driver.StateAbsent)
		})
	}
}

// A transaction that takes an unknown claim over does not commit when the old
// holder turned out to be alive.
func TestTakeoverInATransaction(t *testing.T) {
	now := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		meanwhile func(s *store, p driver.ClaimParams, r driver.Record) error
		want      error
	}{
		"nothing": {func(*store, driver.ClaimParams, driver.Record) error { return nil }, nil},
		"renewed": {func(s *store, p driver.ClaimParams, r driver.Record) error {
			return s.Renew(t.Context(), driver.RenewParams{HolderParams: at(holder(p.Key, r), now.Add(p.Lease)), Lease: time.Minute})
		}, driver.ErrNotHolder},
		"claimed again under its own token": {func(s *store, p driver.ClaimParams, r driver.Record) error {
			p.Now = now.Add(p.Lease)
			got, err := s.Claim(t.Context(), p)
			if err == nil && !got.HeldBy(r.Token, r.Fence) {
				err = errors.New("the holder's claim, sent again, was not granted")
			}
			return err
		}, driver.ErrNotHolder},
		"complete": {func(s *store, p driver.ClaimParams, r driver.Record) error {
			return s.Complete(t.Context(), outcome(p.Key, r, "old"))
		}, driver.ErrNotHolder},
		"released": {func(s *store, p driver.ClaimParams, r driver.Record) error {
			return s.Release(t.Context(), driver.ReleaseParams{HolderParams: holder(p.Key, r)})
		}, driver.ErrNotHolder},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, setup{})
			p := s.claim()
			p.Now = now
			r := s.mustClaim(t, p)
			q := repeat(p)
			q.Now = now.Add(p.Lease)
			tx, taken := s.mustBegin(t, q)
			if taken.Attempt != 2 || taken.Fence <= r.Fence {
				t.Errorf("attempt %d, fence %d after %d", taken.Attempt, taken.Fence, r.Fence)
			}
			// A leased claim neither waits nor takes the key over as well.
			third := repeat(q)
			if got, err := s.Claim(t.Context(), third); err != nil || got.StateAt(q.Now) != driver.StateInFlight || !got.Same(p) {
				t.Errorf("Claim = %+v, %v", got, err)
			}
			if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
				t.Fatal(err)
			}
			if err := tt.meanwhile(s, p, r); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context(), commit(p.Key, taken, "new")); !errors.Is(err, tt.want) || tt.want != nil && err == nil {
				t.Errorf("Commit = %v, want %v", err, tt.want)
			}
			rows := 1
			if tt.want != nil {
				rows = 0
			}
			if n := s.rows(t, p.Key.ID); n != rows {
				t.Errorf("%d business rows, want %d", n, rows)
			}
		})
	}
}

// Where a takeover came first and has the advisory lock, the row keeps the claim
// for the holder that completes it.
func TestCompletionBesideATakeover(t *testing.T) {
	s := open(t, setup{})
	p := s.claim()
	p.Now = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	r := s.mustClaim(t, p)
	q := repeat(p)
	q.Now = p.Now.Add(p.Lease)
	takeover, taken := s.mustBegin(t, q)
	tx, err := s.BeginComplete(t.Context(), holder(p.Key, r))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := takeover.Commit(ctx, commit(p.Key, taken, "new")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the takeover's Commit = %v, want to wait", err)
	}
	if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
		t.Error(err)
	}
	if got := s.stateIs(t, p.Key, driver.StateComplete); string(got.Result) != "result" {
		t.Errorf("result %q", got.Result)
	}
}

func at(h driver.HolderParams, now time.Time) driver.HolderParams {
	h.Now = now
	return h
}

// While the holder completes in a transaction, nobody takes its claim over, waits
// for it, or begins a transaction beside it, though its lease has ended.
func TestCompletionIsNotTakenOver(t *testing.T) {
	s := open(t, setup{})
	now := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	p := s.claim()
	p.Now = now
	r := s.mustClaim(t, p)
	tx, err := s.BeginComplete(t.Context(), holder(p.Key, r))
	if err != nil {
		t.Fatal(err)
	}
	q := repeat(p)
	q.Now = now.Add(p.Lease)
	if got, err := s.Claim(t.Context(), q); err != nil || got.StateAt(q.Now) != driver.StateInFlight {
		t.Errorf("Claim = %+v, %v", got, err)
	}
	if dup, got, err := s.BeginClaim(t.Context(), q); err != nil || dup != nil || got.StateAt(q.Now) != driver.StateInFlight {
		t.Errorf("BeginClaim = %v, %+v, %v", dup, got, err)
	}
	if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
		t.Error(err)
	}
	if _, err := s.BeginComplete(t.Context(), holder(p.Key, r)); !errors.Is(err, driver.ErrNotHolder) {
		t.Errorf("BeginComplete of a complete claim = %v", err)
	}
}

// A commit that the server answers with ROLLBACK has not happened.
func TestCommitAnsweredWithRollback(t *testing.T) {
	s := open(t, setup{driver: []postgres.Option{postgres.WithTxOptions(pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL SERIALIZABLE", CommitQuery: "ROLLBACK"})}})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	var level string
	if err := tx.Handle().QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil || level != "serializable" {
		t.Errorf("isolation level %q, %v", level, err)
	}
	if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("Commit = %v, want ErrTxCommitRollback", err)
	}
	s.stateIs(t, p.Key, driver.StateAbsent)
}

func TestTxOptions(t *testing.T) {
	s := open(t, setup{driver: []postgres.Option{postgres.WithIdleTimeout(0), postgres.WithTxOptions(pgx.TxOptions{
		IsoLevel: pgx.Serializable, AccessMode: pgx.ReadWrite, DeferrableMode: pgx.NotDeferrable,
	})}})
	tx, _ := s.mustBegin(t, s.claim())
	defer tx.Rollback(t.Context())
	var level, idle string
	err := tx.Handle().QueryRow(t.Context(), "SELECT current_setting('transaction_isolation'), current_setting('idle_in_transaction_session_timeout')").Scan(&level, &idle)
	if err != nil || level != "serializable" || idle != "0" {
		t.Errorf("isolation level %q, idle timeout %q, %v", level, idle, err)
	}
}

// A caller whose context ends is not kept by a network that swallows everything.
func TestBeginOverADeadNetwork(t *testing.T) {
	t.Parallel()
	f := openFaulty(t)
	p := f.claim()
	tx, _ := f.mustBegin(t, p) // the pool has a connection
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.px.SetRule(func(*proxy.Conn, proxy.Direction, []byte) proxy.Verdict { return proxy.Drop })
	for name, call := range map[string]func(context.Context) error{
		"BeginClaim": func(ctx context.Context) error { _, _, err := f.BeginClaim(ctx, repeat(p)); return err },
		"Claim":      func(ctx context.Context) error { _, err := f.Claim(ctx, repeat(p)); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		err := call(ctx)
		cancel()
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
			t.Errorf("%s: %v after %v, want the context's error soon", name, err, took)
		}
	}
}
