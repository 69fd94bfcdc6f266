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

// Only SQLSTATEs decide: the server speaks German where it can. Where the locale
// or its messages are not installed (minimal images leave them out) it speaks
// English, and the log says so.
func TestField_P18_LocalisedServer(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "idem-locale-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := pgtest.Config{Settings: map[string]string{"fsync": "off"}}
	if out, err := exec.Command("localedef", "-i", "de_DE", "-f", "UTF-8", filepath.Join(dir, "de_DE.UTF-8")).CombinedOutput(); err != nil {
		t.Logf("no German locale: %v: %s", err, out)
	} else {
		config.Settings["lc_messages"], config.Env = "de_DE.UTF-8", []string{"LOCPATH=" + dir, "LANGUAGE=de"}
	}
	server := pgtest.Start(t, config)
	s := open(t, setup{server: server})
	_, err = s.pool.Exec(t.Context(), "SELECT 1/0")
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		t.Fatal(err)
	}
	t.Logf("the server says %q", pgErr.Message)
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
