package bench

import (
	"path/filepath"
	"testing"

	"github.com/idem-go/idem/internal/redistest"
)

// crowds are the duplicates of one process, and of several.
func crowds(tb testing.TB) (near, far []*crowd) {
	dsn, addr := newDatabase(tb).DSN(), redistest.Start(tb).Addr
	lite, boltFile := filepath.Join(tb.TempDir(), "crowd.db"), filepath.Join(tb.TempDir(), "crowd.bolt")
	if _, err := liteFile(tb, lite).DB().ExecContext(tb.Context(), liteSchema); err != nil {
		tb.Fatal(err)
	}
	for _, c := range []struct{ name, kind, where string }{
		{"idem Do, memory", "memory", ""},
		{"idem Do, PostgreSQL", "postgres", dsn},
		{"idem DoTx, PostgreSQL", "postgres-tx", dsn},
		{"idem Do, SQLite", "sqlite", lite},
		{"idem DoTx, bbolt", "bolt", boltFile},
		{"idem Do, Redis", "redis", addr},
	} {
		near = append(near, here(tb, c.name, c.kind, c.where))
	}
	for _, c := range []struct{ name, kind, where string }{
		{"idem Do, PostgreSQL", "postgres", dsn},
		{"idem DoTx, PostgreSQL", "postgres-tx", dsn},
		{"idem Do, SQLite", "sqlite", lite},
		{"idem DoTx, SQLite", "sqlite-tx", lite},
		{"idem Do, Redis", "redis", addr},
	} {
		far = append(far, apart(tb, c.name, c.kind, c.where))
	}
	return near, far
}
