package postgres_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

func TestField_P18_LocalisedServer(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("localedef"); err != nil {
		t.Skipf("needs localedef: %v", err)
	}
	dir, err := os.MkdirTemp("", "idem-locale-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("localedef", "-i", "de_DE", "-f", "UTF-8", filepath.Join(dir, "de_DE.UTF-8")).CombinedOutput(); err != nil {
		t.Skipf("cannot make a German locale: %v: %s", err, out)
	}
	server := pgtest.Start(t, pgtest.Config{
		Settings: map[string]string{"lc_messages": "de_DE.UTF-8", "fsync": "off"}, Env: []string{"LOCPATH=" + dir, "LANGUAGE=de"},
	})
	s := open(t, setup{server: server})
	_, err = s.pool.Exec(t.Context(), "SELECT 1/0")
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Message == "division by zero" {
		t.Skipf("the server has no German messages: %v", err)
	}
	// A lost claim is found by a division by zero, a conflict by serialization.
	p := s.claim()
	tx, r := s.mustBegin(t, p)
	s.insertComplete(t, repeat(p), "theirs")
	if err := tx.Commit(t.Context(), commit(p.Key, r, "ours")); !errors.Is(err, driver.ErrNotHolder) {
		t.Errorf("Commit = %v, want ErrNotHolder", err)
	}
	strict := s.again(t, setup{driver: []postgres.Option{postgres.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead})}})
	p = s.claim()
	tx, r = strict.mustBegin(t, p)
	s.insertComplete(t, repeat(p), "theirs")
	if err := tx.Commit(t.Context(), commit(p.Key, r, "ours")); !errors.Is(err, driver.ErrRetryable) {
		t.Errorf("Commit = %v, want ErrRetryable", err)
	}
}
