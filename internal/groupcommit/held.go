package groupcommit

import (
	"sync"

	"github.com/idem-go/idem/driver"
)

// Held is the set of keys held by open transactions, each with the record of its
// claim, so that a duplicate in the same process is answered without waiting for
// the writer. The zero value is empty. It is safe for concurrent use.
type Held struct {
	mu   sync.Mutex
	keys map[driver.Key]driver.Record
}

// Enter adds the key for the claim of r. When the key is held already, it returns
// the record of that claim, and false.
func (h *Held) Enter(k driver.Key, r driver.Record) (driver.Record, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if other, ok := h.keys[k]; ok {
		return clone(other), false
	}
	if h.keys == nil {
		h.keys = make(map[driver.Key]driver.Record)
	}
	h.keys[k] = clone(r)
	return driver.Record{}, true
}

// Get returns the record of the claim that holds the key.
func (h *Held) Get(k driver.Key) (driver.Record, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.keys[k]
	return clone(r), ok
}

// Update replaces the record of a key that is held.
func (h *Held) Update(k driver.Key, r driver.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.keys[k]; ok {
		h.keys[k] = clone(r)
	}
}

// Leave removes the key.
func (h *Held) Leave(k driver.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keys, k)
}

// clone drops what a duplicate has no use for, and shares no memory with r.
func clone(r driver.Record) driver.Record {
	r.Fingerprint = append([]byte(nil), r.Fingerprint...)
	r.Result = nil
	return r
}
