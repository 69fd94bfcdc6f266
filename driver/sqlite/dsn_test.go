package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// With a shared cache SQLite locks tables, and answers SQLITE_LOCKED at once where
// it would otherwise answer SQLITE_BUSY, readers included.
func TestSharedCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	d := withRows(t, migrated(t, openDB(t, "file:"+file+"?cache=shared&_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")))
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 20 {
				p := claimParams(fmt.Sprintf("%d-%d", g, i))
				r, err := d.Claim(t.Context(), p)
				if err != nil {
					t.Errorf("Claim: %v", err)
					return
				}
				if err := d.Complete(t.Context(), completeParams(r, nil)); err != nil {
					t.Errorf("Complete: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	tx, r := mustBegin(t, d, claimParams("tx"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := d.Claim(ctx, claimParams("another"))
	wantError(t, "claiming while a transaction is open", err, context.DeadlineExceeded)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	err = insertRow(t.Context(), tx.Handle(), "row")
	if err == nil {
		err = tx.Commit(t.Context(), commitParams(r, ""))
	}
	if err != nil {
		t.Errorf("the transaction: %v", err)
	}
	wantRows(t, d, "row", 1)
}
