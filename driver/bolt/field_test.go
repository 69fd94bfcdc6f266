package bolt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
)

func commitParams(r driver.Record, result string) driver.CommitParams {
	return driver.CommitParams{CompleteParams: completeParams(r, []byte(result))}
}

func mustClaim(t testing.TB, d *bolt.Driver, p driver.ClaimParams) driver.Record {
	t.Helper()
	r, err := d.Claim(t.Context(), p)
	if err != nil || r.State != driver.StateInFlight || r.Token != p.Token {
		t.Fatalf("Claim: %+v, %v; want a grant", r, err)
	}
	return r
}

func mustBegin(t testing.TB, d *bolt.Driver, p driver.ClaimParams) (driver.Tx[*bbolt.Tx], driver.Record) {
	t.Helper()
	tx, r, err := d.BeginClaim(t.Context(), p)
	if err != nil || tx == nil {
		t.Fatalf("BeginClaim: %+v, %v; want a transaction", r, err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx, r
}

func mustBeginComplete(t testing.TB, d *bolt.Driver, id string) (driver.Tx[*bbolt.Tx], driver.Record) {
	t.Helper()
	r := mustClaim(t, d, claimParams(id))
	tx, err := d.BeginComplete(t.Context(), completeParams(r, nil).HolderParams)
	if err != nil {
		t.Fatalf("BeginComplete: %v", err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx, r
}

func wantState(t testing.TB, d *bolt.Driver, id string, want driver.State) driver.Record {
	t.Helper()
	r, err := d.Get(t.Context(), driver.GetParams{Key: driver.Key{Scope: "tenant", ID: id}})
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	if got := r.StateAt(r.Now); got != want {
		t.Errorf("%s is %v, want %v", id, got, want)
	}
	return r
}

func wantRows(t testing.TB, d *bolt.Driver, name string, want int) {
	t.Helper()
	if n, err := countRows(d.DB(), name); err != nil || n != want {
		t.Errorf("%d rows named %s, %v; want %d", n, name, err, want)
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want one that matches %v", what, err, want)
	}
}

// Opening a file that is open elsewhere used to wait for ever.
func TestField_B01_SecondOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	d, err := bolt.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = bolt.Open(file)
	wantError(t, "a second Open", err, bolt.ErrLocked)
	wantError(t, "a second Open", err, bolterrors.ErrTimeout)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v, want a second", took)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = bolt.Open(file); err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Reading inside a transaction while the file is remapped many times blocks nobody.
func TestField_B02_RemapDoesNotBlock(t *testing.T) {
	d := fresh(t)
	big := bytes.Repeat([]byte("x"), 1<<20)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 4 { // 64 MB in all
				id := fmt.Sprintf("%d-%d", g, i)
				tx, r, err := d.BeginClaim(t.Context(), claimParams(id))
				if err != nil {
					t.Errorf("BeginClaim: %v", err)
					return
				}
				if err := insertRow(tx.Handle(), id); err != nil {
					t.Errorf("inserting: %v", err)
				}
				if _, err := d.Get(t.Context(), driver.GetParams{Key: claimParams("another").Key}); err != nil {
					t.Errorf("Get inside the transaction: %v", err)
				}
				if tx, r, err := d.BeginClaim(t.Context(), claimParams(id)); err != nil || tx != nil || r.State != driver.StateInFlight {
					t.Errorf("the same key inside the transaction: %v, %v; want in flight, at once", r.State, err)
				}
				p := commitParams(r, "")
				p.Result = big
				if err := tx.Commit(t.Context(), p); err != nil {
					t.Errorf("Commit: %v", err)
				}
				r = mustClaim(t, d, claimParams("leased "+id))
				if err := d.Complete(t.Context(), completeParams(r, big)); err != nil {
					t.Errorf("Complete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if err := d.DB().View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("the file is damaged: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// DB.Batch runs a function again when a neighbour fails. Here a failing call leaves its
// neighbours as they are, and business code runs on nobody's behalf but its caller's.
func TestField_B03_NeighboursOfAFailure(t *testing.T) {
	d := fresh(t)
	r := mustClaim(t, d, claimParams("stale"))
	stale := completeParams(r, nil)
	stale.Fence++
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if i == 7 {
				wantError(t, "the call of a stranger", d.Complete(t.Context(), stale), driver.ErrNotHolder)
				return
			}
			r, err := d.Claim(t.Context(), claimParams(fmt.Sprint(i)))
			if err != nil || r.Attempt != 1 {
				t.Errorf("a neighbour: attempt %d, %v; want a claim, once", r.Attempt, err)
				return
			}
			if err := d.Complete(t.Context(), completeParams(r, nil)); err != nil {
				t.Errorf("a neighbour: %v", err)
			}
		})
	}
	wg.Wait()
}

// Values of bbolt are pages of the file: kept after their transaction they become other
// bytes, or a fault.
func TestField_B04_ResultsAreCopies(t *testing.T) {
	d := fresh(t)
	const n = 200
	want := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 256) }
	kept := make([]driver.Record, n)
	for i := range n {
		r := mustClaim(t, d, claimParams(fmt.Sprint(i)))
		if err := d.Complete(t.Context(), completeParams(r, want(i))); err != nil {
			t.Fatal(err)
		}
		var err error
		if kept[i], err = d.Claim(t.Context(), claimParams(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	listed, _, err := d.List(t.Context(), driver.ListParams{State: driver.StateComplete, Limit: n})
	if err != nil || len(listed) != n {
		t.Fatalf("List: %d records, %v", len(listed), err)
	}
	later := time.Now().Add(2 * time.Hour)
	if purged, err := d.Purge(t.Context(), driver.PurgeParams{Limit: 10 * n, Now: later}); err != nil || purged != n {
		t.Fatalf("Purge: %d, %v; want %d", purged, err, n)
	}
	for i := range 20 { // written over the freed pages
		r := mustClaim(t, d, claimParams(fmt.Sprint("over ", i)))
		if err := d.Complete(t.Context(), completeParams(r, bytes.Repeat([]byte("z"), 1<<20))); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.DB().Close(); err != nil {
		t.Fatal(err)
	}
	for i, r := range kept {
		if !bytes.Equal(r.Result, want(i)) || string(r.Fingerprint) != "fingerprint" || r.Key.ID != fmt.Sprint(i) {
			t.Fatalf("the record of %d changed under its owner: %v", i, r.Key)
		}
	}
	for _, r := range listed {
		if string(r.Fingerprint) != "fingerprint" || r.Operation != "orders.create" {
			t.Fatalf("a listed record changed under its owner: %v", r.Key)
		}
	}
}

// Work pending when the database is closed ends with an answer, and the answer holds.
func TestField_B06_CloseUnderWay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	d, err := bolt.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	granted, complete := map[string]driver.Token{}, map[string]bool{}
	started := make(chan struct{}, 64)
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := 0; ; i++ {
				p := claimParams(fmt.Sprintf("%d-%d", g, i))
				r, err := d.Claim(context.Background(), p)
				if err != nil {
					wantError(t, "Claim", err, bolterrors.ErrDatabaseNotOpen)
					return
				}
				mu.Lock()
				granted[p.Key.ID] = r.Token
				mu.Unlock()
				if i == 0 {
					started <- struct{}{}
				}
				if err := d.Complete(context.Background(), completeParams(r, nil)); err != nil {
					wantError(t, "Complete", err, bolterrors.ErrDatabaseNotOpen)
					return
				}
				mu.Lock()
				complete[p.Key.ID] = true
				mu.Unlock()
			}
		})
	}
	for range 64 {
		<-started
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	wg.Wait()
	if d, err = bolt.Open(file); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	for id, token := range granted {
		want := driver.StateInFlight
		if complete[id] {
			want = driver.StateComplete
		}
		if r := wantState(t, d, id, want); r.Token != token {
			t.Errorf("%s is held by another token", id)
		}
	}
}

// A panic, or the end of its goroutine, in business code leaves no lock behind.
func TestField_B07_PanicInBusinessCode(t *testing.T) {
	d := fresh(t)
	for name, end := range map[string]func(){
		"panic": func() { panic("boom") }, "panic(nil)": func() { panic(nil) }, "Goexit": runtime.Goexit,
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			tx, _, err := d.BeginClaim(context.Background(), claimParams(name))
			if err != nil {
				t.Errorf("BeginClaim: %v", err)
				return
			}
			defer func() {
				if err := tx.Rollback(context.Background()); err != nil {
					t.Errorf("%s: Rollback: %v", name, err)
				}
			}()
			if err := insertRow(tx.Handle(), name); err != nil {
				t.Errorf("inserting: %v", err)
			}
			end()
		}()
		<-done
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := d.Claim(ctx, claimParams("after "+name)); err != nil {
			t.Errorf("another key after %s: %v", name, err)
		}
		cancel()
		wantState(t, d, name, driver.StateAbsent)
		wantRows(t, d, name, 0)
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := bolt.Open(filepath.Join(t.TempDir(), "no", "such", "directory")); err == nil {
		t.Error("Open of an impossible path succeeded")
	}
	file := filepath.Join(t.TempDir(), "idem.db")
	if err := os.WriteFile(file, bytes.Repeat([]byte("not bbolt"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := bolt.Open(file)
	wantError(t, "Open of another file", err, bolterrors.ErrInvalid)
}
