package postgres_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

func param(name, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

func asRole(name string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = name, name }
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"idem_records", "keys", `odd "name" $1`, "other.keys", `Other Schema.Keys`} {
		t.Run(table, func(t *testing.T) {
			db := pgtest.Shared(t).Database(t)
			pool := db.Pool(t)
			if _, err := pool.Exec(t.Context(), `CREATE SCHEMA other; CREATE SCHEMA "Other Schema"`); err != nil {
				t.Fatal(err)
			}
			d := postgres.New(pool, postgres.WithTable(table))
			if err := d.Check(t.Context()); !errors.Is(err, driver.ErrUnsafeConfig) {
				t.Errorf("Check before = %v", err)
			}
			// Any number of processes start at the same time.
			var all sync.WaitGroup
			for range 6 {
				all.Go(func() {
					if err := postgres.New(pool, postgres.WithTable(table)).Migrate(t.Context()); err != nil {
						t.Errorf("Migrate: %v", err)
					}
				})
			}
			all.Wait()
			if err := d.Check(t.Context()); err != nil {
				t.Errorf("Check = %v", err)
			}
			s := &store{Driver: d, db: db, pool: pool}
			p := s.claim()
			if err := s.Complete(t.Context(), outcome(p.Key, s.mustClaim(t, p), "result")); err != nil {
				t.Error(err)
			}
			s.stateIs(t, p.Key, driver.StateComplete)
		})
	}
}

func TestSchemaCanBePasted(t *testing.T) {
	pool := pgtest.Pool(t)
	for range 2 {
		if _, err := pool.Exec(t.Context(), postgres.Schema); err != nil {
			t.Fatal(err)
		}
	}
	if err := postgres.New(pool).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMigrateWithoutRights(t *testing.T) {
	s := open(t, setup{})
	role := strings.ReplaceAll(s.db.Name, "idem_test", "idem_role")
	if _, err := s.pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD '"+role+"'; REVOKE CREATE ON SCHEMA public FROM PUBLIC"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn := s.db.Conn(t)
		for _, sql := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
			if _, err := conn.Exec(t.Context(), sql); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		}
	})
	pool := s.db.Pool(t, asRole(role))
	d := postgres.New(pool)
	if err := d.Migrate(t.Context()); !errors.Is(err, driver.ErrUnsafeConfig) {
		t.Errorf("Migrate without privileges on the table = %v", err)
	}
	if err := postgres.New(pool, postgres.WithTable("another")).Migrate(t.Context()); err == nil || errors.Is(err, driver.ErrUnsafeConfig) {
		t.Errorf("Migrate of a new table = %v, want the server's refusal", err)
	}
	if _, err := s.pool.Exec(t.Context(), "GRANT SELECT, INSERT, UPDATE, DELETE ON idem_records TO "+role); err != nil {
		t.Fatal(err)
	}
	if err := d.Migrate(t.Context()); err != nil {
		t.Errorf("Migrate of a table that is there = %v", err)
	}
	limited := &store{Driver: d, db: s.db, pool: pool}
	p := limited.claim()
	tx, r := limited.mustBegin(t, p)
	if err := tx.Commit(t.Context(), commit(p.Key, r, "result")); err != nil {
		t.Error(err)
	}
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		change  string
		pool    func(*pgxpool.Config)
		options []postgres.Option
		want    error
		says    string
	}{
		{name: "fit"},
		{name: "no table", change: "DROP TABLE idem_records", want: driver.ErrUnsafeConfig, says: "Migrate"},
		{name: "no column", change: "ALTER TABLE idem_records DROP COLUMN note", want: driver.ErrUnsafeConfig, says: "note"},
		{name: "other type", change: "ALTER TABLE idem_records ALTER COLUMN state TYPE bigint", want: driver.ErrUnsafeConfig, says: "state"},
		{name: "another column", change: "ALTER TABLE idem_records ADD COLUMN mine text"},
		{name: "no key", change: "ALTER TABLE idem_records DROP CONSTRAINT idem_records_pkey", want: driver.ErrUnsafeConfig, says: "primary key"},
		{name: "unlogged", change: "ALTER TABLE idem_records SET UNLOGGED", want: driver.ErrUnsafeConfig, says: "LOGGED"},
		{name: "newer", change: "COMMENT ON TABLE idem_records IS 'idem schema 2'", want: driver.ErrNewerVersion, says: "version 2"},
		{name: "no comment", change: "COMMENT ON TABLE idem_records IS NULL"},
		{name: "asynchronous", pool: param("synchronous_commit", "off"), want: driver.ErrUnsafeConfig, says: "synchronous_commit"},
		{name: "asynchronous, allowed", pool: param("synchronous_commit", "off"), options: []postgres.Option{postgres.AllowAsyncCommit()}},
		{name: "local", pool: param("synchronous_commit", "local")},
		{name: "read only", pool: param("default_transaction_read_only", "on"), says: "no writes"},
		{name: "bad table", options: []postgres.Option{postgres.WithTable("a.b.c")}, want: driver.ErrInvalidParams, says: "a.b.c"},
		{name: "empty table", options: []postgres.Option{postgres.WithTable("")}, want: driver.ErrInvalidParams},
		{name: "idle timeout", options: []postgres.Option{postgres.WithIdleTimeout(time.Microsecond)}, want: driver.ErrInvalidParams, says: "idle"},
		{name: "access mode", options: []postgres.Option{postgres.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadOnly})}, want: driver.ErrInvalidParams, says: "read only"},
		{name: "namespace", options: []postgres.Option{postgres.WithNamespace("a\x00")}, want: driver.ErrInvalidParams, says: "namespace"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, setup{})
			if _, err := s.pool.Exec(t.Context(), tt.change); err != nil {
				t.Fatal(err)
			}
			set := setup{driver: tt.options}
			if tt.pool != nil {
				set.pool = append(set.pool, tt.pool)
			}
			d := s.again(t, set)
			// The first verb finds what Check finds, and does nothing.
			_, claimed := d.Claim(t.Context(), d.claim())
			tx, _, begun := d.BeginClaim(t.Context(), d.claim())
			_, completing := d.BeginComplete(t.Context(), driver.HolderParams{Key: d.claim().Key, Token: driver.NewToken(), Fence: 1})
			good := tt.want == nil && tt.says == ""
			if good {
				if !errors.Is(completing, driver.ErrNotHolder) {
					t.Errorf("BeginComplete = %v", completing)
				}
				completing = nil
				tx.Rollback(t.Context())
			} else if tx != nil {
				t.Fatal("a transaction was begun")
			}
			for verb, err := range map[string]error{"Check": d.Check(t.Context()), "Claim": claimed, "BeginClaim": begun, "BeginComplete": completing} {
				switch {
				case good && err != nil:
					t.Errorf("%s = %v", verb, err)
				case !good && (err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says)):
					t.Errorf("%s = %v, want one that is %v and says %q", verb, err, tt.want, tt.says)
				}
			}
			if tt.name == "bad table" {
				if err := d.Migrate(t.Context()); !errors.Is(err, tt.want) {
					t.Errorf("Migrate = %v", err)
				}
			}
		})
	}
}

func TestNilPool(t *testing.T) {
	if err := postgres.New(nil).Check(t.Context()); !errors.Is(err, driver.ErrInvalidParams) {
		t.Errorf("Check = %v", err)
	}
}

// The check of a store is repeated until it has succeeded once, and not after that.
func TestCheckRecovers(t *testing.T) {
	main := open(t, setup{})
	px := through(t, main.db.Server.Addr())
	s := main.again(t, setup{pool: []func(*pgxpool.Config){pgtest.Through(px.Addr()), pgtest.MaxConns(1)}})
	px.Refuse(true)
	if _, err := s.Claim(t.Context(), s.claim()); err == nil {
		t.Fatal("Claim without a server = nil")
	}
	px.Refuse(false)
	s.mustClaim(t, s.claim())
	before := px.Trips()
	s.mustClaim(t, s.claim())
	if got := px.Trips() - before; got != 1 {
		t.Errorf("a claim took %d round trips", got)
	}
}

func TestBadDSN(t *testing.T) {
	d := postgres.New(pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Database = "no_such_database" }))
	s := &store{Driver: d}
	if _, err := s.Claim(t.Context(), s.claim()); err == nil {
		t.Error("Claim = nil")
	}
	if tx, _, err := s.BeginClaim(t.Context(), s.claim()); err == nil || tx != nil {
		t.Errorf("BeginClaim = %v, %v", tx, err)
	}
}
