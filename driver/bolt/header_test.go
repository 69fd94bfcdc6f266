package bolt_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
)

// A copy that was cut short, as by a full disk, is refused when it is opened: bbolt
// panics on some of them, and others end the process when the missing part is read.
func TestOpenRefusesAFileCutShort(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole.db")
	d, err := bolt.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		p := driver.ClaimParams{
			Key: driver.Key{Scope: "s", ID: driver.NewToken().String()}, Operation: "op", Fingerprint: []byte("f"), Token: driver.NewToken(),
			Lease: time.Minute, Retention: time.Hour,
		}
		if _, err := d.Claim(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	var used int
	if err := d.DB().View(func(tx *bbolt.Tx) error { used = int(tx.Size()); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	bytes, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	for _, size := range []int{1, page, 2 * page, 3 * page, 4 * page, used / 2, used - page, used - 1, used} {
		name := filepath.Join(dir, "cut.db")
		if err := os.WriteFile(name, bytes[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := bolt.Open(name)
		if err == nil {
			d.Close()
		}
		if (err == nil) != (size == used) {
			t.Errorf("%d of %d bytes in use: %v", size, used, err)
		}
		if size >= 2*page && size < used && (err == nil || !strings.Contains(err.Error(), "cut short")) {
			t.Errorf("%d of %d bytes in use: %v, want an error that says so", size, used, err)
		}
	}
	// One of the two descriptions may be torn: the other one counts.
	for i := range 2 {
		torn := append([]byte(nil), bytes...)
		torn[i*page+16+20]++
		name := filepath.Join(dir, "torn.db")
		if err := os.WriteFile(name, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := bolt.Open(name)
		if err != nil {
			t.Fatalf("torn description %d: %v", i, err)
		}
		d.Close()
	}
}
