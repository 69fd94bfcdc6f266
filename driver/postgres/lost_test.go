package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/proxy"
)

// faulty is a driver behind a proxy. What it reads for a test goes around the proxy.
type faulty struct {
	*store
	px   *proxy.Proxy
	main *store
}

func openFaulty(t testing.TB, options ...postgres.Option) faulty {
	t.Helper()
	main := open(t, setup{})
	px := through(t, main.db.Server.Addr())
	s := main.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(px.Addr())}, driver: options})
	return faulty{s, px, main}
}

// kinds of transaction that commit.
var kinds = []struct {
	name  string
	begin func(t testing.TB, s *store, p driver.ClaimParams) (driver.Tx[pgx.Tx], driver.Record)
	undo  driver.State // the state of the key when nothing was committed
}{
	{"claim", func(t testing.TB, s *store, p driver.ClaimParams) (driver.Tx[pgx.Tx], driver.Record) {
		return s.mustBegin(t, p)
	}, driver.StateAbsent},
	{"completion", func(t testing.TB, s *store, p driver.ClaimParams) (driver.Tx[pgx.Tx], driver.Record) {
		r := s.mustClaim(t, p)
		tx, err := s.BeginComplete(t.Context(), holder(p.Key, r))
		if err != nil {
			t.Fatal(err)
		}
		return tx, r
	}, driver.StateInFlight},
}

// onCommit applies a verdict to the chunk that holds COMMIT, or to the answer to it.
func (f faulty) onCommit(answer bool, verdict func() proxy.Verdict) {
	var mu sync.Mutex
	var asked *proxy.Conn
	f.px.SetRule(func(c *proxy.Conn, d proxy.Direction, chunk []byte) proxy.Verdict {
		mu.Lock()
		hit := false
		if d == proxy.ToServer && bytes.Contains(chunk, []byte("COMMIT\x00")) {
			asked, hit = c, !answer
		} else if d == proxy.ToClient && c == asked && answer {
			asked, hit = nil, true
		}
		mu.Unlock()
		if hit {
			return verdict()
		}
		return proxy.Forward
	})
}

func TestLostCommit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		answer  bool // the answer is lost, not the request
		refuse  bool // and nobody can be asked afterwards
		applied bool
		want    error
	}{
		{"answer lost", true, false, true, nil},
		{"request lost", false, false, false, driver.ErrRetryable},
		{"answer lost and server gone", true, true, true, driver.ErrOutcomeUnknown},
		{"request lost and server gone", false, true, false, driver.ErrOutcomeUnknown},
	}
	for _, kind := range kinds {
		for _, tt := range tests {
			t.Run(kind.name+"/"+tt.name, func(t *testing.T) {
				f := openFaulty(t, postgres.WithPatience(500*time.Millisecond))
				if !tt.refuse {
					f.store = f.main.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(f.px.Addr())}})
				}
				p := f.claim()
				tx, r := kind.begin(t, f.store, p)
				if err := insert(t.Context(), tx.Handle(), p.Key.ID); err != nil {
					t.Fatal(err)
				}
				f.onCommit(tt.answer, func() proxy.Verdict {
					f.px.Refuse(tt.refuse)
					return proxy.Kill
				})
				err := tx.Commit(t.Context(), commit(p.Key, r, "result"))
				if !errors.Is(err, tt.want) || tt.want != nil && err == nil {
					t.Fatalf("Commit = %v, want %v", err, tt.want)
				}
				for _, other := range []error{driver.ErrRetryable, driver.ErrOutcomeUnknown} {
					if !errors.Is(tt.want, other) && errors.Is(err, other) {
						t.Errorf("Commit = %v, which also says %v", err, other)
					}
				}
				state, rows := kind.undo, 0
				if tt.applied {
					state, rows = driver.StateComplete, 1
				}
				f.main.stateIs(t, p.Key, state)
				if got := f.main.rows(t, p.Key.ID); got != rows {
					t.Errorf("%d business rows, want %d", got, rows)
				}
				f.px.SetRule(nil)
				f.px.Refuse(false)
				// The caller asks again with the same key, and is told.
				if _, err := f.Claim(t.Context(), repeat(p)); err != nil {
					t.Errorf("the next claim: %v", err)
				}
			})
		}
	}
}

// While the old session still runs, the answer is not "rolled back".
func TestLostCommitThatIsStillUnderWay(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for _, late := range []struct {
			name    string
			verdict proxy.Verdict
			want    error
			state   driver.State
		}{
			{"arrives", proxy.Forward, nil, driver.StateComplete},
			{"never arrives", proxy.Kill, driver.ErrRetryable, kind.undo},
		} {
			t.Run(kind.name+"/"+late.name, func(t *testing.T) {
				f := openFaulty(t, postgres.WithPatience(time.Minute))
				p := f.claim()
				tx, r := kind.begin(t, f.store, p)
				release := make(chan proxy.Verdict, 2)
				defer func() { release <- proxy.Kill }() // also when the test fails before it is released
				f.onCommit(false, func() proxy.Verdict { return <-release })
				// Commit gives its connection up, and asks on another.
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				done, before := make(chan error, 1), f.pool.Stat().AcquireCount()
				go func() { done <- tx.Commit(ctx, commit(p.Key, r, "result")) }()
				eventually(t, "a second question about the lost commit", func() bool {
					return f.pool.Stat().AcquireCount() >= before+2
				})
				select {
				case err := <-done:
					t.Fatalf("Commit = %v while the session was still open", err)
				default:
				}
				release <- late.verdict
				if err := <-done; !errors.Is(err, late.want) || late.want != nil && err == nil {
					t.Errorf("Commit = %v, want %v", err, late.want)
				}
				f.main.stateIs(t, p.Key, late.state)
			})
		}
	}
}

// A completion may not have the advisory lock, when a takeover had it first. Then
// its lock on the row tells that it is still under way.
func TestLostCommitWithoutTheAdvisoryLock(t *testing.T) {
	t.Parallel()
	f := openFaulty(t, postgres.WithPatience(time.Minute))
	p := f.claim()
	p.Now = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	r := f.mustClaim(t, p)
	q := repeat(p)
	q.Now = p.Now.Add(p.Lease)
	takeover, _ := f.main.mustBegin(t, q)
	tx, err := f.BeginComplete(t.Context(), holder(p.Key, r))
	if err != nil {
		t.Fatal(err)
	}
	if err := takeover.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	release := make(chan proxy.Verdict, 2)
	defer func() { release <- proxy.Kill }() // also when the test fails before it is released
	f.onCommit(false, func() proxy.Verdict { return <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done, before := make(chan error, 1), f.pool.Stat().AcquireCount()
	go func() { done <- tx.Commit(ctx, commit(p.Key, r, "result")) }()
	eventually(t, "a second question about the lost commit", func() bool {
		return len(done) > 0 || f.pool.Stat().AcquireCount() >= before+3
	})
	if len(done) > 0 {
		t.Fatalf("Commit = %v while the session was still open", <-done)
	}
	release <- proxy.Forward
	if err := <-done; err != nil {
		t.Errorf("Commit = %v", err)
	}
	f.main.stateIs(t, p.Key, driver.StateComplete)
}

// A verb whose answer was lost is sent again with the same token.
func TestLostAnswerOfALeasedVerb(t *testing.T) {
	f := openFaulty(t)
	p := f.claim()
	lose := func() {
		var once sync.Once
		f.px.SetRule(func(_ *proxy.Conn, d proxy.Direction, _ []byte) proxy.Verdict {
			v := proxy.Forward
			if d == proxy.ToClient {
				once.Do(func() { v = proxy.Kill })
			}
			return v
		})
	}
	if _, err := f.Get(t.Context(), driver.GetParams{Key: p.Key}); err != nil {
		t.Fatal(err)
	}
	lose()
	if _, err := f.Claim(t.Context(), p); err == nil {
		t.Fatal("no error although the answer was lost")
	}
	r := f.mustClaim(t, p)
	if r.Attempt != 1 {
		t.Errorf("attempt %d, want 1", r.Attempt)
	}
	lose()
	if err := f.Complete(t.Context(), outcome(p.Key, r, "result")); err == nil {
		t.Fatal("no error although the answer was lost")
	}
	if err := f.Complete(t.Context(), outcome(p.Key, r, "result")); err != nil {
		t.Error(err)
	}
	if got := f.main.stateIs(t, p.Key, driver.StateComplete); string(got.Result) != "result" {
		t.Errorf("result %q", got.Result)
	}
}

// A takeover takes two round trips. What happens between them is another's.
func TestBetweenTheTripsOfATakeover(t *testing.T) {
	t.Parallel()
	now := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		absent    bool // the record is one that time has made absent
		meanwhile func(s *store, p driver.ClaimParams, old driver.Record) (holder driver.Token, end func())
		granted   bool
	}{
		"a transaction takes it over": {false, func(s *store, p driver.ClaimParams, _ driver.Record) (driver.Token, func()) {
			tx, _ := s.mustBegin(t, p)
			return driver.Token{}, func() { tx.Rollback(t.Context()) }
		}, false},
		"a transaction completes it": {false, func(s *store, p driver.ClaimParams, old driver.Record) (driver.Token, func()) {
			tx, err := s.BeginComplete(t.Context(), holder(p.Key, old))
			if err != nil {
				t.Fatal(err)
			}
			return driver.Token{}, func() { tx.Rollback(t.Context()) }
		}, false},
		"a claim takes it over": {false, func(s *store, p driver.ClaimParams, _ driver.Record) (driver.Token, func()) {
			return s.mustClaim(t, p).Token, func() {}
		}, false},
		"a transaction reuses it": {true, func(s *store, p driver.ClaimParams, _ driver.Record) (driver.Token, func()) {
			tx, _ := s.mustBegin(t, p)
			return driver.Token{}, func() { tx.Rollback(t.Context()) }
		}, false},
		"it is purged": {true, func(s *store, p driver.ClaimParams, _ driver.Record) (driver.Token, func()) {
			if n, err := s.Purge(t.Context(), driver.PurgeParams{Limit: 1, Now: p.Now}); n != 1 || err != nil {
				t.Errorf("Purge = %d, %v", n, err)
			}
			return driver.Token{}, func() {}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := openFaulty(t)
			p := f.claim()
			p.Now = now
			old := f.mustClaim(t, p)
			p.Now = now.Add(p.Lease)
			if tt.absent {
				p.Now = now.Add(p.Retention)
			}
			arrived, released := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(released) })
			defer release() // also when the test fails before
			var once sync.Once
			f.px.SetRule(func(_ *proxy.Conn, d proxy.Direction, chunk []byte) proxy.Verdict {
				if d == proxy.ToServer && bytes.Contains(chunk, []byte("pg_try_advisory_xact_lock_shared($1)")) {
					once.Do(func() { close(arrived); <-released })
				}
				return proxy.Forward
			})
			q := repeat(p)
			var r driver.Record
			done := make(chan error)
			go func() {
				var err error
				r, err = f.Claim(t.Context(), q)
				done <- err
			}()
			<-arrived
			other, end := tt.meanwhile(f.main, repeat(p), old)
			release()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			end()
			if got := r.HeldBy(q.Token, r.Fence); got != tt.granted {
				t.Errorf("granted %v, want %v: %+v", got, tt.granted, r)
			}
			if !tt.granted && (r.StateAt(q.Now) != driver.StateInFlight || r.Token != other) {
				t.Errorf("the record is %v of token %v, want in flight of %v", r.StateAt(q.Now), r.Token, other)
			}
		})
	}
}

func TestServerDown(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Config{Settings: map[string]string{"fsync": "off"}})
	s := open(t, setup{server: server})
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	server.Kill()
	if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err == nil {
		t.Error("Commit on a dead server = nil")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if tx, _, err := s.BeginClaim(ctx, s.claim()); err == nil || tx != nil {
		t.Errorf("BeginClaim on a dead server = %v, %v", tx, err)
	}
	if _, err := s.Claim(ctx, s.claim()); err == nil {
		t.Error("Claim on a dead server = nil")
	}
	fresh := s.again(t, setup{})
	if err := fresh.Check(ctx); err == nil {
		t.Error("Check of a dead server = nil")
	}
}
