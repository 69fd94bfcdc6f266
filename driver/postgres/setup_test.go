package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// store is a database with a driver over it, and a table of business rows.
type store struct {
	*postgres.Driver
	db   *pgtest.Database
	pool *pgxpool.Pool
	ids  int
}

type setup struct {
	pool   []func(*pgxpool.Config)
	driver []postgres.Option
	server *pgtest.Server // the shared one when nil
}

func open(t testing.TB, s setup) *store {
	t.Helper()
	if s.server == nil {
		s.server = pgtest.Shared(t)
	}
	db := s.server.Database(t)
	conn := db.Conn(t)
	if _, err := conn.Exec(t.Context(), "CREATE TABLE business (name text NOT NULL); CREATE TABLE once (name text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	pool := db.Pool(t, s.pool...)
	d := postgres.New(pool, s.driver...)
	if err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &store{Driver: d, db: db, pool: pool}
}

// again returns another driver over the same database, as another process would have.
func (s *store) again(t testing.TB, set setup) *store {
	t.Helper()
	pool := s.db.Pool(t, set.pool...)
	return &store{Driver: postgres.New(pool, set.driver...), db: s.db, pool: pool}
}

func (s *store) claim() driver.ClaimParams {
	s.ids++
	return driver.ClaimParams{
		Key:       driver.Key{Scope: "tenant", ID: fmt.Sprintf("key-%d", s.ids)},
		Operation: "orders.create", Fingerprint: []byte("fingerprint"), Summary: "summary",
		Token: driver.NewToken(), Lease: time.Minute, Retention: time.Hour,
	}
}

// repeat returns the claim of another caller.
func repeat(p driver.ClaimParams) driver.ClaimParams {
	p.Token = driver.NewToken()
	return p
}

func (s *store) mustClaim(t testing.TB, p driver.ClaimParams) driver.Record {
	t.Helper()
	r, err := s.Claim(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if !r.HeldBy(p.Token, r.Fence) {
		t.Fatalf("not granted: %+v", r)
	}
	return r
}

func (s *store) mustBegin(t testing.TB, p driver.ClaimParams) (driver.Tx[pgx.Tx], driver.Record) {
	t.Helper()
	tx, r, err := s.BeginClaim(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if tx == nil {
		t.Fatalf("not granted: %+v", r)
	}
	return tx, r
}

func holder(k driver.Key, r driver.Record) driver.HolderParams {
	return driver.HolderParams{Key: k, Token: r.Token, Fence: r.Fence}
}

func outcome(k driver.Key, r driver.Record, result string) driver.CompleteParams {
	return driver.CompleteParams{HolderParams: holder(k, r), Result: []byte(result), Retention: time.Hour}
}

func commit(k driver.Key, r driver.Record, result string) driver.CommitParams {
	return driver.CommitParams{CompleteParams: outcome(k, r, result)}
}

func insert(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, "INSERT INTO business VALUES ($1)", name)
	return err
}

// rows counts the committed business rows of a name.
func (s *store) rows(t testing.TB, name string) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM business WHERE name = $1", name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// stateIs checks the state of a key as the server judges it now.
func (s *store) stateIs(t testing.TB, k driver.Key, want driver.State) driver.Record {
	t.Helper()
	r, err := s.Get(t.Context(), driver.GetParams{Key: k})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.StateAt(r.Now); got != want {
		t.Errorf("the key is %v, want %v", got, want)
	}
	return r
}

// eventually waits for what the server does in its own time, after a connection was cut.
func eventually(t testing.TB, what string, ready func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ready() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// insertComplete writes a complete record past the driver and its locks.
func (s *store) insertComplete(t testing.TB, p driver.ClaimParams, result string) {
	t.Helper()
	kh := p.Key.Hash("", nil)
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO idem_records
		(kh, state, hold, attempt, fence, token, created_at, lease_until, completed_at, retain_until, grace_until, purge_after,
			namespace, scope, id, operation, summary, note, fingerprint, result)
		VALUES ($1, 2, false, 1, 1, $2, now(), now(), now(), now() + '1 h', now() + '1 h', now() + '1 h', '', $3, $4, $5, '', '', $6, $7)`,
		kh[:], p.Token[:], p.Key.Scope, p.Key.ID, p.Operation, p.Fingerprint, []byte(result)); err != nil {
		t.Fatal(err)
	}
}
