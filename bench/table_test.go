package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/idem-go/idem/internal/pgtest"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(workerKind); kind != "" {
		worker(kind, os.Getenv(workerWhere))
		return
	}
	pgtest.Main(m)
}

// TestTable measures everything. What works in the background (the other libraries
// do) is started after idem has been measured beside its floors.
func TestTable(t *testing.T) {
	var f figures
	t.Run("floors", func(t *testing.T) {
		f.floors = append(f.floors, pgTables(t, "pg-first", "PostgreSQL, first run", pgFirst)...)
		f.floors = append(f.floors, pgTables(t, "pg-replay", "PostgreSQL, replay", pgReplay)...)
		f.floors = append(f.floors, liteTables(t)...)
		f.floors = append(f.floors, boltTables(t)...)
		f.floors = append(f.floors, redisTables(t)...)
		f.floors = append(f.floors, coreTables(t)...)
		f.allocsFirst, f.allocsReplay = allocations(t)
		for round := range *rounds {
			for _, tab := range f.floors {
				tab.measure(t, round)
			}
		}
	})
	t.Run("peers", func(t *testing.T) {
		s := newStores(t)
		f.peers = peerTables(t, s)
		for round := range *rounds {
			for _, tab := range f.peers {
				tab.measure(t, round)
			}
		}
	})
	t.Run("duplicates", func(t *testing.T) {
		f.near, f.far = crowds(t, newStores(t))
		for range max(1, *rounds) {
			for _, c := range append(f.near, f.far...) {
				c.measure(t)
			}
		}
	})
	if t.Failed() || len(f.far) == 0 { // nothing where a server is missing
		return
	}
	counts(t, f)
	page := f.page()
	t.Log("\n" + page)
	if *out == "" {
		return
	}
	for name, content := range map[string]string{"performance.md": page, "performance.svg": f.plot()} {
		if err := os.WriteFile(filepath.Join(*out, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
