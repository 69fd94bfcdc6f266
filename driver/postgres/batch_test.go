package postgres_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/proxy"
)

func batchOf(p driver.ClaimParams) driver.BatchParams {
	return driver.BatchParams{ClaimParams: p, Result: []byte("result"), Keep: time.Hour}
}

func inserting(names ...string) *pgx.Batch {
	b := &pgx.Batch{}
	for _, n := range names {
		b.Queue("INSERT INTO business VALUES ($1)", n)
	}
	return b
}

// mustRun runs a batch that inserts a row named by the key, and is granted.
func (s *store) mustRun(t testing.TB, p driver.BatchParams) driver.Record {
	t.Helper()
	r, err := s.RunBatch(t.Context(), p, inserting(p.Key.ID))
	if err != nil {
		t.Fatal(err)
	}
	if r.State != driver.StateComplete || r.Token != p.Token {
		t.Fatalf("not granted: %+v", r)
	}
	return r
}

// refused runs a batch that is not granted, and wants no row of it.
func (s *store) refused(t testing.TB, p driver.BatchParams) driver.Record {
	t.Helper()
	r, err := s.RunBatch(t.Context(), p, inserting("refused"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Token == p.Token {
		t.Errorf("granted: %+v", r)
	}
	if n := s.rows(t, "refused"); n != 0 {
		t.Errorf("%d rows of a batch that was refused", n)
	}
	return r
}

// The record of a batch is that of the pure function, in every mode of pgx.
func TestBatch(t *testing.T) {
	t.Parallel()
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			set := setup{
				pool:   []func(*pgxpool.Config){pgtest.Mode(c.mode)},
				driver: append(c.options, postgres.WithTxOptions(pgx.TxOptions{IsoLevel: c.level})),
			}
			s := open(t, setup{driver: c.options})
			if c.bouncer {
				set.pool = append(set.pool, pgtest.Through(s.db.Bouncer(t, 20)))
			}
			s = s.again(t, set)
			p := batchOf(s.claim())
			p.Grace = time.Minute
			p.Now = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
			got := s.mustRun(t, p)
			stored, err := s.Get(t.Context(), driver.GetParams{Key: p.Key, Now: p.Now})
			if err != nil {
				t.Fatal(err)
			}
			want, _ := driver.Record{}.AfterBatch(p, p.Now)
			if diff := cmp.Diff(want, stored, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("returned (-want +got):\n%s", diff)
			}
			if n := s.rows(t, p.Key.ID); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}

			again, err := s.RunBatch(t.Context(), p, inserting(p.Key.ID))
			if err != nil || again.Token != p.Token || s.rows(t, p.Key.ID) != 1 {
				t.Errorf("sent again: %v, %v, %d rows", again, err, s.rows(t, p.Key.ID))
			}
			q := batchOf(repeat(p.ClaimParams))
			q.Now = p.Now
			if r := s.refused(t, q); r.State != driver.StateComplete || string(r.Result) != "result" {
				t.Errorf("a repeat gets %+v", r)
			}
			other := q
			other.Fingerprint = []byte("another")
			if r := s.refused(t, other); string(r.Fingerprint) != "fingerprint" {
				t.Errorf("another request gets %+v", r)
			}
		})
	}
}

// What a batch makes of a record that is there already.
func TestBatchOnARecord(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	start := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := []struct {
		name    string
		prepare func(p driver.ClaimParams, r driver.Record) error
		later   time.Duration
		hold    bool
		granted bool
		attempt int
		state   driver.State // of one that is refused
	}{
		{name: "in flight", later: time.Second, state: driver.StateInFlight},
		{name: "attempt that died", later: 2 * time.Minute, granted: true, attempt: 2},
		{name: "attempt that died, held", later: 2 * time.Minute, hold: true, state: driver.StateUnknown},
		{name: "attempt that died and is forgotten", later: 2 * time.Hour, granted: true, attempt: 1},
		{name: "released", granted: true, attempt: 1, prepare: func(p driver.ClaimParams, r driver.Record) error {
			return s.Release(t.Context(), driver.ReleaseParams{HolderParams: holder(p.Key, r), Note: "undone"})
		}},
		{name: "complete", later: time.Minute, state: driver.StateComplete, prepare: func(p driver.ClaimParams, r driver.Record) error {
			c := outcome(p.Key, r, "first")
			c.Now = start
			return s.Complete(t.Context(), c)
		}},
		{name: "expired, in grace", later: 90 * time.Minute, state: driver.StateExpired, prepare: func(p driver.ClaimParams, r driver.Record) error {
			c := outcome(p.Key, r, "first")
			c.Now, c.Grace = start, time.Hour
			return s.Complete(t.Context(), c)
		}},
		{name: "expired", later: 90 * time.Minute, granted: true, attempt: 1, prepare: func(p driver.ClaimParams, r driver.Record) error {
			c := outcome(p.Key, r, "first")
			c.Now = start
			return s.Complete(t.Context(), c)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := s.claim()
			p.Now, p.Hold = start, tt.hold
			old := s.mustClaim(t, p)
			if tt.prepare != nil {
				if err := tt.prepare(p, old); err != nil {
					t.Fatal(err)
				}
			}
			b := batchOf(repeat(p))
			b.Now = start.Add(tt.later)
			before, err := s.Get(t.Context(), driver.GetParams{Key: p.Key, Now: b.Now})
			if err != nil {
				t.Fatal(err)
			}
			if !tt.granted {
				if r := s.refused(t, b); r.StateAt(b.Now) != tt.state {
					t.Errorf("%v, want %v", r.StateAt(b.Now), tt.state)
				}
				return
			}
			got := s.mustRun(t, b)
			want, _ := before.AfterBatch(b, b.Now)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("returned (-want +got):\n%s", diff)
			}
			stored, err := s.Get(t.Context(), driver.GetParams{Key: p.Key, Now: b.Now})
			if diff := cmp.Diff(want, stored, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("%v; stored (-want +got):\n%s", err, diff)
			}
			if got.Attempt != tt.attempt || got.Fence <= old.Fence {
				t.Errorf("attempt %d and fence %d, want attempt %d and a fence over %d", got.Attempt, got.Fence, tt.attempt, old.Fence)
			}
		})
	}
}

// batches calls before each batch that a connection sends, with its number.
type batches struct {
	n      int
	before func(n int)
}

func (b *batches) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (b *batches) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (b *batches) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	b.n++
	b.before(b.n)
	return ctx
}
func (b *batches) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (b *batches) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// What a batch does when its record is no longer what it has just read.
func TestBatchOnARecordThatChanges(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	for name, change := range map[string]func(p driver.ClaimParams) error{
		"claimed": func(p driver.ClaimParams) error {
			_, err := s.Claim(t.Context(), repeat(p))
			return err
		},
		"complete": func(p driver.ClaimParams) error {
			q := batchOf(repeat(p))
			q.Result = []byte("another")
			_, err := s.RunBatch(t.Context(), q, inserting("another"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.claim()
			r := s.mustClaim(t, p)
			if err := s.Release(t.Context(), driver.ReleaseParams{HolderParams: holder(p.Key, r)}); err != nil {
				t.Fatal(err)
			}
			// The first batch takes the key for absent, and the second for released.
			trace := &batches{before: func(n int) {
				if n == 2 {
					if err := change(p); err != nil {
						t.Error(err)
					}
				}
			}}
			other := s.again(t, setup{pool: []func(*pgxpool.Config){func(c *pgxpool.Config) { c.ConnConfig.Tracer = trace }}})
			got := other.refused(t, batchOf(repeat(p)))
			if now, err := s.Get(t.Context(), driver.GetParams{Key: p.Key}); err != nil || got.Token != now.Token || got.State != now.State {
				t.Errorf("refused by %+v, and the record is %+v, %v", got, now, err)
			}
			if trace.n != 2 {
				t.Errorf("%d batches, want 2", trace.n)
			}
		})
	}
}

// What else is unique in the table, or behind a trigger of it, is an error of the batch and
// not a duplicate of its key.
func TestBatchBesideAnotherUniqueIndex(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	if _, err := s.pool.Exec(t.Context(), `CREATE UNIQUE INDEX ON `+postgres.DefaultTable+` (summary)`); err != nil {
		t.Fatal(err)
	}
	p := batchOf(s.claim())
	p.Summary = "taken"
	s.mustRun(t, p)
	for range 2 {
		q := batchOf(s.claim())
		q.Summary = "taken"
		r, err := s.RunBatch(t.Context(), q, inserting("refused"))
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23505" {
			t.Errorf("RunBatch = %+v, %v; want the error of the index", r, err)
		}
		if n := s.rows(t, "refused"); n != 0 {
			t.Errorf("%d rows of a batch that failed", n)
		}
		s.stateIs(t, q.Key, driver.StateAbsent)
	}
}

// A key that a transaction holds is in flight, at once, and whoever commits first wins.
func TestBatchBesideATransaction(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	b := batchOf(repeat(p))
	if got := s.refused(t, b); got.State != driver.StateInFlight || !got.LeaseUntil.IsZero() {
		t.Errorf("beside a transaction: %+v", got)
	}
	if err := tx.Commit(t.Context(), commit(p.Key, r, "transaction")); err != nil {
		t.Fatal(err)
	}
	if got := s.refused(t, b); string(got.Result) != "transaction" {
		t.Errorf("afterwards: %+v", got)
	}
}

// A statement that fails undoes the others and the claim, also when it fails at the commit.
func TestBatchWithAStatementThatFails(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	if _, err := s.pool.Exec(t.Context(), `CREATE TABLE deferred (name text UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO deferred VALUES ('taken')`); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		sql  string
		at   int
		code string
	}{
		"at once":              {"INSERT INTO business VALUES (NULL)", 1, "23502"},
		"by a division":        {"SELECT 1 / count(*) FROM once", 1, "22012"},
		"with the commit":      {"INSERT INTO deferred VALUES ('taken')", -1, "23505"},
		"before it is sent":    {"INSERT INTO nothing VALUES (1)", -1, "42P01"},
		"as a procedure would": {"DO $$ BEGIN COMMIT; END $$", 1, "2D000"},
	} {
		for _, level := range []pgx.TxIsoLevel{"", pgx.RepeatableRead} {
			t.Run(name+string(level), func(t *testing.T) {
				s := s.again(t, setup{driver: []postgres.Option{postgres.WithTxOptions(pgx.TxOptions{IsoLevel: level})}})
				s.ids = 1000 * (tt.at + len(tt.sql) + len(level))
				p := batchOf(s.claim())
				b := inserting(p.Key.ID)
				b.Queue(tt.sql)
				b.Queue("INSERT INTO business VALUES ('after')")
				_, err := s.RunBatch(t.Context(), p, b)
				var statement *driver.StatementError
				var server *pgconn.PgError
				if !errors.As(err, &statement) || statement.Statement != tt.at || !errors.As(err, &server) || server.Code != tt.code {
					t.Errorf("error %v, want statement %d and code %s", err, tt.at, tt.code)
				}
				s.stateIs(t, p.Key, driver.StateAbsent)
				if n := s.rows(t, p.Key.ID) + s.rows(t, "after"); n != 0 {
					t.Errorf("%d rows, want none", n)
				}
				s.mustRun(t, p)
			})
		}
	}
}

func TestBatchesThatAreRefused(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	odd := &pgx.Batch{}
	odd.Queue("INSERT INTO business VALUES ($1)", make(chan int))
	var statement *driver.StatementError
	if _, err := s.RunBatch(t.Context(), batchOf(s.claim()), odd); !errors.As(err, &statement) {
		t.Errorf("an argument that pgx cannot encode: %v, want a StatementError", err)
	}
	called := &pgx.Batch{}
	called.Queue("SELECT 1").Exec(func(pgconn.CommandTag) error { return nil })
	batches := map[string]*pgx.Batch{"nil": nil, "callback": called}
	for _, sql := range []string{"BEGIN", "commit;", " \n COMMIT AND CHAIN", "end", "Rollback\tTO x", "abort", "START TRANSACTION", "savepoint x", "RELEASE x"} {
		batches[sql] = &pgx.Batch{}
		batches[sql].Queue(sql)
	}
	for name, b := range batches {
		t.Run(name, func(t *testing.T) {
			p := batchOf(s.claim())
			if _, err := s.RunBatch(t.Context(), p, b); !errors.Is(err, driver.ErrInvalidParams) {
				t.Errorf("error %v, want ErrInvalidParams", err)
			}
			s.stateIs(t, p.Key, driver.StateAbsent)
		})
	}
	// One that hides from the driver is found by what the server says that it did.
	for _, sql := range []string{"/* */ ROLLBACK", "/* */ COMMIT", "-- first\nCOMMIT AND CHAIN", "/* */ ROLLBACK AND CHAIN"} {
		hidden := inserting("hidden")
		hidden.Queue(sql)
		if _, err := s.RunBatch(t.Context(), batchOf(s.claim()), hidden); !errors.Is(err, driver.ErrOutcomeUnknown) {
			t.Errorf("%s: error %v, want ErrOutcomeUnknown", sql, err)
		}
		if open := s.pool.Stat().AcquiredConns(); open != 0 {
			t.Errorf("%s: %d connections were not given back", sql, open)
		}
	}
}

// A lost answer is looked up, and a caller that has gone changes nothing.
func TestLostAnswerOfABatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		answer  bool
		refuse  bool
		applied bool
		want    error
	}{
		{"answer lost", true, false, true, nil},
		{"request lost", false, false, false, driver.ErrRetryable},
		{"answer lost and server gone", true, true, true, driver.ErrOutcomeUnknown},
		{"request lost and server gone", false, true, false, driver.ErrOutcomeUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := openFaulty(t, postgres.WithPatience(500*time.Millisecond))
			if !tt.refuse {
				f.store = f.main.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(f.px.Addr())}})
			}
			f.mustRun(t, batchOf(f.claim())) // the connection knows the statements now
			p := batchOf(f.claim())
			var once sync.Once
			var sent atomic.Bool
			f.px.SetRule(func(_ *proxy.Conn, d proxy.Direction, _ []byte) proxy.Verdict {
				v := proxy.Forward
				if d == proxy.ToServer {
					sent.Store(true)
				}
				if sent.Load() && (d == proxy.ToClient) == tt.answer {
					once.Do(func() {
						f.px.Refuse(tt.refuse)
						v = proxy.Kill
					})
				}
				return v
			})
			r, err := f.RunBatch(t.Context(), p, inserting(p.Key.ID))
			if !errors.Is(err, tt.want) || tt.want != nil && err == nil {
				t.Fatalf("RunBatch = %v, want %v", err, tt.want)
			}
			state, rows := driver.StateAbsent, 0
			if tt.applied {
				state, rows = driver.StateComplete, 1
			}
			if tt.want == nil && (r.State != state || r.Token != p.Token) {
				t.Errorf("record %+v", r)
			}
			f.main.stateIs(t, p.Key, state)
			if n := f.main.rows(t, p.Key.ID); n != rows {
				t.Errorf("%d rows, want %d", n, rows)
			}
			f.px.SetRule(nil)
			f.px.Refuse(false)
			again, err := f.RunBatch(t.Context(), p, inserting(p.Key.ID))
			if err != nil || again.Token != p.Token || f.main.rows(t, p.Key.ID) != 1 {
				t.Errorf("sent again: %+v, %v", again, err)
			}
		})
	}
}

func TestBatchOfACallerThatHasGone(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	p := batchOf(s.claim())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.RunBatch(ctx, p, inserting(p.Key.ID)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	s.stateIs(t, p.Key, driver.StateAbsent)

	// In the middle: nothing may be left half done, whichever way it goes.
	slow := inserting(p.Key.ID)
	slow.Queue("SELECT pg_sleep(60)")
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.RunBatch(ctx, p, slow); err == nil {
		t.Error("no error")
	}
	eventually(t, "the end of the batch", func() bool {
		tx, _, err := s.BeginClaim(t.Context(), repeat(p.ClaimParams))
		if err != nil || tx == nil {
			return false
		}
		return tx.Rollback(t.Context()) == nil
	})
	s.stateIs(t, p.Key, driver.StateAbsent)
	if n := s.rows(t, p.Key.ID); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

// 64 equal calls from two processes' worth of handles are one row and equal answers.
func TestConcurrentBatches(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	handles := []*store{s, s.again(t, setup{})}
	var ops []*idem.BatchOperation[string, *pgx.Batch]
	for _, h := range handles {
		op, err := idem.NewBatch[string](h.Driver, idem.Config{Name: "orders.create", Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	fp := idem.NewFingerprint("test.v1", []byte("a"))
	for round := range 20 {
		key := idem.Key{Scope: "tenant", ID: "round-" + string(rune('a'+round))}
		var wg sync.WaitGroup
		results := make([]idem.Result[string], 64)
		for i := range results {
			wg.Go(func() {
				var err error
				results[i], err = ops[i%len(ops)].DoBatch(t.Context(), key, fp, "value", inserting(key.ID))
				if err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		fresh := 0
		for i, r := range results {
			if r.Value != "value" || r.Attempt != 1 {
				t.Errorf("call %d: %+v", i, r)
			}
			if !r.Replayed {
				fresh++
			}
		}
		if n := s.rows(t, key.ID); fresh != 1 || n != 1 {
			t.Fatalf("%d runs and %d rows, want one of each", fresh, n)
		}
	}
}
