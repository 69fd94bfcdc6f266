package finished_test

import (
	"fmt"
	"testing"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/finished"
)

func hash(n int) driver.KeyHash {
	return driver.Key{Scope: "tenant", ID: fmt.Sprint(n)}.Hash("", nil)
}

func TestKeys(t *testing.T) {
	var k finished.Keys
	const n = 100
	for i := range n {
		if k.Has(hash(i)) {
			t.Fatalf("an empty set has key %d", i)
		}
	}
	for i := range n {
		k.Add(hash(i))
		if !k.Has(hash(i)) {
			t.Fatalf("key %d is not there right after it was added", i)
		}
	}
	kept := 0
	for i := range n {
		if k.Has(hash(i)) {
			kept++
		}
		if k.Has(hash(n + i)) {
			t.Errorf("key %d, which was not added, is there", n+i)
		}
	}
	if kept < n*9/10 { // two in a hundred share a place, on average
		t.Errorf("%d of %d keys are left", kept, n)
	}
}

// Two keys of one place forget each other.
func TestPlace(t *testing.T) {
	var k finished.Keys
	a, b := hash(1), hash(2)
	copy(b[8:], a[8:])
	k.Add(a)
	k.Add(b)
	if k.Has(a) || !k.Has(b) {
		t.Errorf("the first is there: %v; the second: %v", k.Has(a), k.Has(b))
	}
	k.Remove(a)
	if !k.Has(b) {
		t.Error("the second went with the first")
	}
	k.Remove(b)
	if k.Has(b) {
		t.Error("the second is there after it was removed")
	}
}
