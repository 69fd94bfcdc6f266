package bench

import (
	"testing"

	"github.com/idem-go/idem/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestTable measures everything.
func TestTable(t *testing.T) {
	var all []*table
	all = append(all, pgTables(t, "pg-first", "PostgreSQL, first run", pgFirst)...)
	all = append(all, pgTables(t, "pg-replay", "PostgreSQL, replay", pgReplay)...)
	all = append(all, liteTables(t)...)
	all = append(all, boltTables(t)...)
	all = append(all, redisTables(t)...)
	all = append(all, coreTables(t)...)
	for round := range *rounds {
		for _, tab := range all {
			tab.measure(t, round)
		}
	}
	t.Log("\n" + text(all))
}
