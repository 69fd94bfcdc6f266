package postgres_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/postgres"
)

// scaleSQL returns the statements that docs/scale.md advises under a title.
func scaleSQL(t testing.TB, title string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "## "+title+"\n")
	_, block, _ := strings.Cut(section, "```sql\n")
	sql, _, found := strings.Cut(block, "```\n")
	if !found {
		t.Fatalf("docs/scale.md has no SQL under %q", title)
	}
	return sql
}

// openPartitioned opens a store whose table is partitioned by the hash of the key.
func openPartitioned(t testing.TB, set setup) *store {
	t.Helper()
	s := open(t, set)
	if _, err := s.pool.Exec(t.Context(), scaleSQL(t, "PostgreSQL: hash partitions")); err != nil {
		t.Fatal(err)
	}
	return s.again(t, set)
}

// TestPartitioned: the driver finds nothing amiss, Migrate leaves the table alone, records
// are spread, and a key is looked for in one partition.
func TestPartitioned(t *testing.T) {
	t.Parallel()
	s := openPartitioned(t, setup{})
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const claims = 400
	var last driver.ClaimParams
	for range claims {
		last = s.claim()
		s.mustClaim(t, last)
	}
	var partitions, least int
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*), min(n) FROM
		(SELECT tableoid, count(*) AS n FROM idem_records GROUP BY tableoid) p`).Scan(&partitions, &least); err != nil {
		t.Fatal(err)
	}
	if partitions != 16 || least == 0 {
		t.Errorf("%d claims are in %d partitions, at least %d in each", claims, partitions, least)
	}
	kh := last.Key.Hash("", nil)
	rows, err := s.pool.Query(t.Context(), "EXPLAIN SELECT result FROM idem_records WHERE kh = '"+kh.String()+"'")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(plan, "\n"), "Scan"); n != 1 {
		t.Errorf("a key is looked for in %d partitions:\n%s", n, strings.Join(plan, "\n"))
	}
	now := time.Now().Add(2 * time.Hour)
	n, err := s.Purge(t.Context(), driver.PurgeParams{Limit: claims, Now: now})
	if err != nil || n != claims {
		t.Errorf("purged %d of %d records: %v", n, claims, err)
	}
}

// TestTablePerDay is the advice of docs/scale.md: keys that carry their day, a table for each, and
// dropping it in place of purging.
func TestTablePerDay(t *testing.T) {
	t.Parallel()
	s := open(t, setup{})
	table := func(day string) *store {
		d := postgres.New(s.pool, postgres.WithTable("idem_"+day))
		if err := d.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return &store{Driver: d, db: s.db, pool: s.pool}
	}
	old, today := table("20261130"), table("20261201")
	p := s.claim()
	r := old.mustClaim(t, p)
	if err := old.Complete(t.Context(), outcome(p.Key, r, "done")); err != nil {
		t.Fatal(err)
	}
	old.stateIs(t, p.Key, driver.StateComplete)
	today.stateIs(t, p.Key, driver.StateAbsent) // why a key has to lead to the same table for ever
	today.mustClaim(t, s.claim())
	if _, err := s.pool.Exec(t.Context(), scaleSQL(t, "PostgreSQL: a table for every day")); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Claim(t.Context(), repeat(p)); err == nil {
		t.Error("a key of a table that was dropped is granted: it has run, and could run again")
	}
	today.mustClaim(t, s.claim())
}
