package bench

import (
	"os"
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

// TestTable measures everything.
func TestTable(t *testing.T) {
	var all []*table
	all = append(all, pgTables(t, "pg-first", "PostgreSQL, first run", pgFirst)...)
	all = append(all, pgTables(t, "pg-replay", "PostgreSQL, replay", pgReplay)...)
	all = append(all, liteTables(t)...)
	all = append(all, boltTables(t)...)
	all = append(all, redisTables(t)...)
	all = append(all, coreTables(t)...)
	near, far := crowds(t)
	for round := range *rounds {
		for _, tab := range all {
			tab.measure(t, round)
		}
		for _, c := range append(near, far...) {
			c.measure(t)
		}
	}
	t.Log("\n" + text(all) + crowdText("in one process", near) + crowdText("over processes", far))
}
