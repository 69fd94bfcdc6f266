package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/sqlite"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		query   string
		options []sqlite.Option
		want    string // in the message; empty: accepted
	}{
		{query: ""},
		{query: "?_pragma=journal_mode(WAL)&_pragma=synchronous(EXTRA)"},
		{query: "?_pragma=journal_mode(PERSIST)"},
		{query: "?_pragma=synchronous(NORMAL)&_pragma=journal_mode(WAL)", want: "synchronous is NORMAL"},
		{query: "?_pragma=synchronous(NORMAL)&_pragma=journal_mode(WAL)", options: []sqlite.Option{sqlite.AllowLossOnPowerFailure()}},
		{query: "?_pragma=synchronous(OFF)", options: []sqlite.Option{sqlite.AllowLossOnPowerFailure()}, want: "synchronous is OFF"},
		{query: "?_pragma=journal_mode(OFF)", want: "journal_mode is off"},
		{query: "?_pragma=journal_mode(MEMORY)", want: "journal_mode is memory"},
	} {
		file := filepath.Join(t.TempDir(), "idem.db")
		migrated(t, openDB(t, file))
		d := sqlite.New(openDB(t, file+c.query), c.options...)
		err := d.Check(t.Context())
		_, claim := d.Claim(t.Context(), claimParams("k"))
		switch {
		case c.want == "" && (err != nil || claim != nil):
			t.Errorf("%q: Check: %v, Claim: %v; want no errors", c.query, err, claim)
		case c.want != "" && (!errors.Is(err, driver.ErrUnsafeConfig) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%q: error %v, want ErrUnsafeConfig that says %q", c.query, err, c.want)
		case c.want != "" && !errors.Is(claim, driver.ErrUnsafeConfig):
			t.Errorf("%q: Claim without Check: error %v, want ErrUnsafeConfig", c.query, claim)
		}
	}
}

func TestGuaranteesFollowTheOptions(t *testing.T) {
	if g := sqlite.New(nil).Guarantees(); g.DurableClaim != driver.DurableAlways {
		t.Errorf("by default claims are durable %q", g.DurableClaim)
	}
	if g := sqlite.New(nil, sqlite.AllowLossOnPowerFailure()).Guarantees(); g.DurableClaim != driver.DurableConfigured {
		t.Errorf("with loss allowed claims are durable %q", g.DurableClaim)
	}
}

func TestMigrate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	d := sqlite.New(openDB(t, file))
	_, err := d.Claim(t.Context(), claimParams("k"))
	if err == nil || !strings.Contains(err.Error(), "run Migrate") {
		t.Errorf("without a table: error %v, want one that says what to do", err)
	}

	var wg sync.WaitGroup
	for range 4 { // as processes that start together
		db := openDB(t, file)
		wg.Go(func() {
			if err := sqlite.New(db).Migrate(t.Context()); err != nil {
				t.Errorf("Migrate: %v", err)
			}
		})
	}
	wg.Wait()
	mustClaim(t, d, claimParams("k"))

	other, err := openDB(t, file+"?_txlock=immediate").BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Migrate(t.Context()); err != nil {
		t.Errorf("Migrate of what is there, under another writer: %v", err)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.DB().ExecContext(t.Context(), sqlite.Schema); err != nil {
		t.Errorf("running Schema again: %v", err)
	}
	wantState(t, d, "k", driver.StateInFlight)
}

func TestNewerTable(t *testing.T) {
	d := fresh(t)
	if _, err := d.DB().ExecContext(t.Context(), `UPDATE idem_keys_version SET version = 2`); err != nil {
		t.Fatal(err)
	}
	late := sqlite.New(d.DB())
	wantError(t, "Check", late.Check(t.Context()), driver.ErrNewerVersion)
	wantError(t, "Migrate", late.Migrate(t.Context()), driver.ErrNewerVersion)
	_, err := late.Claim(t.Context(), claimParams("k"))
	wantError(t, "Claim", err, driver.ErrNewerVersion)
	_, err = sqlite.Open(path(t, d))
	wantError(t, "Open", err, driver.ErrNewerVersion)
}

func TestForeignRecord(t *testing.T) {
	for _, change := range []string{`scope = 'another'`, `token = x'00'`, `state = 9`} {
		d := fresh(t)
		p := claimParams("k")
		mustClaim(t, d, p)
		if _, err := d.DB().ExecContext(t.Context(), `UPDATE idem_keys SET `+change); err != nil {
			t.Fatal(err)
		}
		_, err := d.Claim(t.Context(), p)
		wantError(t, "Claim after "+change, err, driver.ErrForeignRecord)
		_, err = d.Get(t.Context(), driver.GetParams{Key: p.Key})
		wantError(t, "Get after "+change, err, driver.ErrForeignRecord)
	}
}

func TestOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	db := openDB(t, file)
	drivers := []*sqlite.Driver{
		migrated(t, db),
		migrated(t, db, sqlite.WithNamespace("other")),
		migrated(t, db, sqlite.WithSecret([]byte("secret"))),
		migrated(t, db, sqlite.WithTable("jobs; DROP TABLE idem_keys")),
		migrated(t, db, sqlite.WithTable(""), sqlite.WithSecret([]byte("another"))),
	}
	for i, d := range drivers {
		if r, err := d.Claim(t.Context(), claimParams("k")); err != nil || r.Attempt != 1 || r.Key.ID != "k" {
			t.Errorf("driver %d: %+v, %v; want a claim of its own", i, r, err)
		}
	}
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM idem_keys WHERE scope IS NULL AND id IS NULL`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d records without a readable key, %v; want those of the two secrets", n, err)
	}
	if _, _, err := drivers[0].List(t.Context(), driver.ListParams{State: driver.StateInFlight, Limit: 1, After: "x"}); !errors.Is(err, driver.ErrInvalidParams) {
		t.Errorf("List with another's cursor: %v", err)
	}
}

func TestOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "odd ?name#%41 (1).db")
	d, err := sqlite.Open(file)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	mustClaim(t, d, claimParams("k"))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file is not where it was asked for: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := d.Claim(t.Context(), claimParams("k")); err == nil {
		t.Error("Claim after Close succeeded")
	}
	if d, err = sqlite.Open(file); err != nil {
		t.Fatalf("Open again: %v", err)
	}
	wantState(t, d, "k", driver.StateInFlight)
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := sqlite.Open(filepath.Join(file, "not a directory")); err == nil {
		t.Error("Open of an impossible path succeeded")
	}
}

// Calls that are under way when the database is closed end with an answer that holds.
func TestCloseUnderWay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	d, err := sqlite.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	complete := make(map[string]bool)
	started := make(chan struct{}, 32)
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			for i := 0; ; i++ {
				p := claimParams(fmt.Sprintf("%d-%d", g, i))
				r, err := d.Claim(context.Background(), p)
				if err == nil {
					err = d.Complete(context.Background(), completeParams(r, nil))
				}
				if i == 0 {
					started <- struct{}{}
				}
				if err != nil {
					return
				}
				mu.Lock()
				complete[p.Key.ID] = true
				mu.Unlock()
			}
		})
	}
	for range 32 {
		<-started
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	wg.Wait()
	if d, err = sqlite.Open(file); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if len(complete) < 32 {
		t.Errorf("%d keys were completed, want one of each caller at least", len(complete))
	}
	for id := range complete {
		wantState(t, d, id, driver.StateComplete)
	}
}

// Pages do not depend on how many records lie between those asked for.
func TestListScansOn(t *testing.T) {
	d := fresh(t)
	const every, total = 400, 1300 // more than one page of rows between two matches
	tx, err := d.DB().BeginTx(t.Context(), &sql.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range total {
		lease := t0.AddDate(10, 0, 0).UnixMicro()
		if i%every == 0 {
			lease = t0.UnixMicro()
		}
		_, err := tx.ExecContext(t.Context(), `INSERT INTO idem_keys (kh, scope, id, state, operation, fingerprint, summary, token,
			fence, attempt, hold, note, created_us, lease_us, completed_us, retain_us, grace_us)
			VALUES (?, 's', ?, 1, 'op', x'01', '', randomblob(16), 1, 1, 1, '', 1, ?, 0, 1, 0)`, fmt.Appendf(nil, "%016d", i), fmt.Sprint(i), lease)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var ids []string
	p := driver.ListParams{State: driver.StateUnknown, Limit: 2, Now: t0.AddDate(1, 0, 0)}
	for {
		records, next, err := d.List(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			ids = append(ids, r.Key.ID)
		}
		if p.After = next; next == "" {
			break
		}
	}
	if got := strings.Join(ids, " "); got != "0 400 800 1200" {
		t.Errorf("unknown: %s; want 0 400 800 1200", got)
	}
}
