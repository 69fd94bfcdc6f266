package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/proxy"
)

func through(t testing.TB, addr string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// sequences are the driver's share of what package idem does.
var sequences = []struct {
	name    string
	trips   int64
	flushes float64
	prepare func(t testing.TB, s *store) func()
}{
	{"DoTx", 3, 1, func(t testing.TB, s *store) func() {
		return func() {
			p := s.claim()
			tx, r := s.mustBegin(t, p)
			if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"DoTx with a final error", 3, 1, func(t testing.TB, s *store) func() {
		return func() {
			p := s.claim()
			tx, r := s.mustBegin(t, p)
			if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
				t.Fatal(err)
			}
			c := commit(p.Key, r, "result")
			c.Discard = true
			if err := tx.Commit(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"DoBatch", 1, 1, func(t testing.TB, s *store) func() {
		return func() { s.mustRun(t, batchOf(s.claim())) }
	}},
	{"Do", 2, 2, func(t testing.TB, s *store) func() {
		return func() {
			p := s.claim()
			if err := s.Complete(t.Context(), outcome(p.Key, s.mustClaim(t, p), "result")); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"DoThenTx", 4, 2, func(t testing.TB, s *store) func() {
		return func() {
			p := s.claim()
			r := s.mustClaim(t, p)
			tx, err := s.BeginComplete(t.Context(), holder(p.Key, r))
			if err != nil {
				t.Fatal(err)
			}
			if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"replay", 1, 0, func(t testing.TB, s *store) func() {
		p := s.claim()
		if err := s.Complete(t.Context(), outcome(p.Key, s.mustClaim(t, p), "result")); err != nil {
			t.Fatal(err)
		}
		return func() {
			if r, err := s.Claim(t.Context(), repeat(p)); err != nil || string(r.Result) != "result" {
				t.Fatalf("%q, %v", r.Result, err)
			}
		}
	}},
	{"replay in a transaction", 1, 0, func(t testing.TB, s *store) func() {
		p := s.claim()
		if err := s.Complete(t.Context(), outcome(p.Key, s.mustClaim(t, p), "result")); err != nil {
			t.Fatal(err)
		}
		return func() {
			if tx, r, err := s.BeginClaim(t.Context(), repeat(p)); err != nil || tx != nil || string(r.Result) != "result" {
				t.Fatalf("%v, %q, %v", tx, r.Result, err)
			}
		}
	}},
	{"replay of a batch", 1, 0, func(t testing.TB, s *store) func() {
		p := batchOf(s.claim())
		s.mustRun(t, p)
		return func() {
			if r, err := s.RunBatch(t.Context(), batchOf(repeat(p.ClaimParams)), inserting("refused")); err != nil || r.Token != p.Token {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	}},
	{"duplicate in flight", 1, 0, func(t testing.TB, s *store) func() {
		p := s.claim()
		s.mustClaim(t, p)
		return func() {
			if r, err := s.Claim(t.Context(), repeat(p)); err != nil || r.Token != p.Token {
				t.Fatalf("%v, %v", r, err)
			}
		}
	}},
	{"takeover", 2, 1, func(t testing.TB, s *store) func() {
		p := s.claim()
		p.Now = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
		s.mustClaim(t, p)
		return func() {
			p = repeat(p)
			p.Now = p.Now.Add(p.Lease)
			s.mustClaim(t, p)
		}
	}},
}

// measured is the name of the session whose cost is counted.
const measured = "idem-measured"

func TestCost(t *testing.T) {
	const rounds = 100
	for _, q := range sequences {
		t.Run(q.name, func(t *testing.T) {
			main := open(t, setup{})
			px := through(t, main.db.Server.Addr())
			s := main.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(px.Addr()), pgtest.MaxConns(1), func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["application_name"] = measured
			}}})
			run := q.prepare(t, s)
			for range 3 { // connect, look at the schema, prepare the test's own insert
				run()
			}
			trips, flushes := px.Trips(), flushes(t, main)
			for range rounds {
				run()
			}
			if got := px.Trips() - trips; got != rounds*q.trips {
				t.Errorf("%d calls took %d round trips, want %d each", rounds, got, q.trips)
			}
			// A session reports its flushes when it ends.
			s.pool.Close()
			got := float64(flushesSince(t, main, flushes)) / rounds
			if got < q.flushes*0.98 || got > q.flushes*1.05+0.05 {
				t.Errorf("%.2f flushes a call, want %.2f", got, q.flushes)
			}
			t.Logf("%d round trips, %.2f flushes a call", q.trips, got)
		})
	}
}

func flushes(t testing.TB, s *store) (n int64) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), "SELECT wal_sync FROM pg_stat_wal").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func flushesSince(t testing.TB, s *store, before int64) int64 {
	t.Helper()
	eventually(t, "the end of the session", func() bool {
		var n int
		err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", measured).Scan(&n)
		return err == nil && n == 0
	})
	return flushes(t, s) - before
}

// A completion must stay on its page and leave the index on purge_after alone.
func TestCompletionIsHOT(t *testing.T) {
	s := open(t, setup{pool: []func(*pgxpool.Config){pgtest.MaxConns(1)}})
	const rounds = 100
	for range rounds {
		p := s.claim()
		if err := s.Complete(t.Context(), outcome(p.Key, s.mustClaim(t, p), "result")); err != nil {
			t.Fatal(err)
		}
	}
	s.pool.Close()
	conn := s.db.Conn(t)
	var updates, hot int
	eventually(t, "the report of the statistics", func() bool {
		err := conn.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", postgres.DefaultTable).Scan(&updates, &hot)
		return err == nil && updates == rounds
	})
	if hot < rounds*9/10 {
		t.Errorf("%d of %d completions were HOT", hot, updates)
	}
}

func TestPurgeFindsWhatMoved(t *testing.T) {
	s := open(t, setup{})
	now := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	purge := func(at time.Duration, want int) {
		t.Helper()
		n, err := s.Purge(t.Context(), driver.PurgeParams{Limit: 2, Now: now.Add(at)})
		if err != nil || n != want {
			t.Errorf("after %v: purged %d, %v; want %d", at, n, err, want)
		}
	}
	// Due after one hour when claimed, after three when completed, five times over
	// the limit: the batches that only move the limit on must not hide what is due.
	for range 10 {
		p := s.claim()
		p.Now = now
		r := s.mustClaim(t, p)
		c := outcome(p.Key, r, "result")
		c.Now, c.Retention, c.Grace = now, 3*time.Hour, time.Hour
		if err := s.Complete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	late := s.claim()
	late.Now, late.Retention = now, 90*time.Minute
	s.mustClaim(t, late)
	purge(2*time.Hour, 1) // late alone
	purge(2*time.Hour, 0)
	for range 5 {
		purge(3*time.Hour, 2)
	}
	purge(3*time.Hour, 0)
	for range 5 {
		purge(4*time.Hour, 2)
	}
	var left int
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+postgres.DefaultTable).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d records are left, %v", left, err)
	}
}
