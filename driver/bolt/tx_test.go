package bolt_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
)

// The application must not end the transaction it is given; if it does, idem says so.
func TestApplicationEndsTheTransaction(t *testing.T) {
	commit := func(tx driver.Tx[*bbolt.Tx], r driver.Record) error {
		return tx.Commit(context.Background(), commitParams(r, "done"))
	}
	rollback := func(tx driver.Tx[*bbolt.Tx], _ driver.Record) error { return tx.Rollback(context.Background()) }
	for _, c := range []struct {
		name    string
		end     func(*bbolt.Tx) error
		then    func(driver.Tx[*bbolt.Tx], driver.Record) error
		unknown bool // of a claim made in the transaction; of a leased claim nobody can say
		rows    int
	}{
		{"commit, Commit", (*bbolt.Tx).Commit, commit, true, 1},
		{"commit, Rollback", (*bbolt.Tx).Commit, rollback, true, 1},
		{"rollback, Commit", (*bbolt.Tx).Rollback, commit, false, 0},
		{"rollback, Rollback", (*bbolt.Tx).Rollback, rollback, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := fresh(t)
			tx, r := mustBegin(t, d, claimParams("k"))
			if err := insertRow(tx.Handle(), "k"); err != nil {
				t.Fatal(err)
			}
			if err := c.end(tx.Handle()); err != nil {
				t.Fatalf("ending it: %v", err)
			}
			switch err := c.then(tx, r); {
			case err == nil:
				t.Error("nobody was told")
			case c.unknown:
				wantError(t, "claim", err, driver.ErrOutcomeUnknown)
			}
			wantRows(t, d, "k", c.rows)

			tx, r = mustBeginComplete(t, d, "late")
			if err := c.end(tx.Handle()); err != nil {
				t.Fatalf("ending it: %v", err)
			}
			wantError(t, "leased claim", c.then(tx, r), driver.ErrOutcomeUnknown)
			mustClaim(t, d, claimParams("other")) // the lock is free
		})
	}
}

func TestTransactionEndsOnce(t *testing.T) {
	d := fresh(t)
	tx, r := mustBegin(t, d, claimParams("k"))
	if err := tx.Commit(t.Context(), commitParams(r, "done")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context(), commitParams(r, "again")); err == nil {
		t.Error("a second Commit succeeded")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Errorf("Rollback after Commit: %v", err)
	}
	if r := wantState(t, d, "k", driver.StateComplete); string(r.Result) != "done" {
		t.Errorf("result %q, want done", r.Result)
	}
}

// The application's own transactions take the same lock, which knows no context.
func TestWaitingForTheApplication(t *testing.T) {
	d := fresh(t)
	r := mustClaim(t, d, claimParams("held"))
	own, err := d.DB().Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	for name, call := range map[string]func(context.Context) error{
		"Claim":      func(ctx context.Context) error { _, err := d.Claim(ctx, claimParams("k")); return err },
		"BeginClaim": func(ctx context.Context) error { _, _, err := d.BeginClaim(ctx, claimParams("k")); return err },
		"Complete":   func(ctx context.Context) error { return d.Complete(ctx, completeParams(r, nil)) },
		"BeginComplete": func(ctx context.Context) error {
			_, err := d.BeginComplete(ctx, completeParams(r, nil).HolderParams)
			return err
		},
	} {
		wantError(t, name, call(ended), context.DeadlineExceeded)
	}
	wantState(t, d, "held", driver.StateInFlight) // reading waits for nobody
	if err := own.Rollback(); err != nil {
		t.Fatal(err)
	}
	mustClaim(t, d, claimParams("k"))
}

// Two Drivers over one database do not see each other's transactions, and wait.
func TestTwoDrivers(t *testing.T) {
	d := fresh(t)
	other := bolt.New(d.DB())
	tx, r := mustBegin(t, d, claimParams("k"))
	ended, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, _, err := other.BeginClaim(ended, claimParams("k"))
	wantError(t, "BeginClaim of the other", err, context.DeadlineExceeded)
	if err := tx.Commit(t.Context(), commitParams(r, "done")); err != nil {
		t.Fatal(err)
	}
	if r, err := other.Claim(t.Context(), claimParams("k")); err != nil || string(r.Result) != "done" {
		t.Errorf("Claim of the other: %+v, %v; want the replay", r, err)
	}
}

// What the application did to the driver's own buckets inside its transaction counts.
func TestApplicationDeletesTheClaim(t *testing.T) {
	d := fresh(t)
	tx, r := mustBegin(t, d, claimParams("k"))
	if err := tx.Handle().DeleteBucket([]byte(bolt.DefaultBucket)); err != nil {
		t.Fatal(err)
	}
	wantError(t, "Commit", tx.Commit(t.Context(), commitParams(r, "done")), driver.ErrNotHolder)
	wantState(t, d, "k", driver.StateAbsent)
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "idem.db")
	d, err := bolt.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	mustClaim(t, d, claimParams("k"))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]bbolt.Options{"NoSync": {NoSync: true}, "ReadOnly": {ReadOnly: true}} {
		db, err := bbolt.Open(file, 0o600, &o)
		if err != nil {
			t.Fatal(err)
		}
		d := bolt.New(db)
		wantError(t, "Check with "+name, d.Check(t.Context()), driver.ErrUnsafeConfig)
		_, err = d.Claim(t.Context(), claimParams("another"))
		wantError(t, "Claim with "+name, err, driver.ErrUnsafeConfig)
		wantState(t, d, "k", driver.StateInFlight)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "Check of an ended context", d.Check(ended), context.Canceled)
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		version []byte
		want    error
	}{{[]byte{3}, driver.ErrNewerVersion}, {[]byte{1}, driver.ErrForeignRecord}, {nil, driver.ErrForeignRecord}} {
		d := fresh(t)
		err := d.DB().Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket([]byte(bolt.DefaultBucket))
			if err != nil || c.version == nil {
				return err
			}
			return b.Put([]byte("version"), c.version)
		})
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, "Check", d.Check(t.Context()), c.want)
		_, err = d.Claim(t.Context(), claimParams("k"))
		wantError(t, "Claim", err, c.want)
		_, _, err = d.BeginClaim(t.Context(), claimParams("k"))
		wantError(t, "BeginClaim", err, c.want)
	}
}

// A record that cannot be read stops neither the purge of others nor is it lost.
func TestDamagedRecord(t *testing.T) {
	d := fresh(t)
	for _, id := range []string{"a", "b", "c"} {
		p := claimParams(id)
		p.Lease, p.Retention = time.Second, time.Second
		mustClaim(t, d, p)
	}
	h := claimParams("b").Key.Hash("", nil)
	err := d.DB().Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bolt.DefaultBucket)).Put(append([]byte("r"), h[:]...), []byte{1, 2, 3})
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Claim(t.Context(), claimParams("b"))
	wantError(t, "Claim", err, driver.ErrForeignRecord)
	_, _, err = d.List(t.Context(), driver.ListParams{State: driver.StateInFlight, Limit: 10})
	wantError(t, "List", err, driver.ErrForeignRecord)
	n, err := d.Purge(t.Context(), driver.PurgeParams{Limit: 10, Now: time.Now().Add(time.Hour)})
	if err != nil || n != 2 {
		t.Errorf("Purge: %d, %v; want the other two", n, err)
	}
	_, err = d.Get(t.Context(), driver.GetParams{Key: claimParams("b").Key})
	wantError(t, "Get after Purge", err, driver.ErrForeignRecord)
	_, _, err = d.List(t.Context(), driver.ListParams{State: driver.StateInFlight, Limit: 10, After: "zz"})
	wantError(t, "List with another's cursor", err, driver.ErrInvalidParams)
}
