package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestDatabasesAreApart(t *testing.T) {
	a, b := pgtest.Pool(t), pgtest.Pool(t)
	if _, err := a.Exec(t.Context(), "CREATE TABLE only_here (n int)"); err != nil {
		t.Fatal(err)
	}
	var there bool
	if err := b.QueryRow(t.Context(), "SELECT to_regclass('only_here') IS NOT NULL").Scan(&there); err != nil {
		t.Fatal(err)
	}
	if there {
		t.Error("a table of one test's database is in another's")
	}
}

func TestServerIsDurable(t *testing.T) {
	var fsync, commit string
	err := pgtest.Pool(t).QueryRow(t.Context(), "SELECT current_setting('fsync'), current_setting('synchronous_commit')").Scan(&fsync, &commit)
	if err != nil || fsync != "on" || commit != "on" {
		t.Errorf("fsync %q, synchronous_commit %q, %v", fsync, commit, err)
	}
}

func TestBouncer(t *testing.T) {
	d := pgtest.Shared(t).Database(t)
	pool := d.Pool(t, pgtest.Through(d.Bouncer(t, 2)), pgtest.Mode(pgx.QueryExecModeExec))
	var name string
	if err := pool.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil || name != d.Name {
		t.Errorf("got database %q, %v; want %q", name, err, d.Name)
	}
}

func TestPrivateServer(t *testing.T) {
	s := pgtest.Start(t, pgtest.Config{Settings: map[string]string{"work_mem": "5MB"}})
	d := s.Database(t)
	pool := d.Pool(t)
	var got string
	if err := pool.QueryRow(t.Context(), "SHOW work_mem").Scan(&got); err != nil || got != "5MB" {
		t.Errorf("work_mem = %q, %v", got, err)
	}
	s.Kill()
	if err := pool.Ping(t.Context()); err == nil {
		t.Error("a killed server answers")
	}
}
