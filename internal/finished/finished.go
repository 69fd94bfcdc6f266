// Package finished remembers which keys had an outcome when this process saw them last.
package finished

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/idem-go/idem/driver"
)

// Keys is a set that forgets: a guess of what a claim will find, which may decide only
// what is asked of the store first. When it is wrong, the claim costs more than it had
// to, and nothing else. Two keys of one place forget each other, and a key may be taken
// for another. It takes 32 KiB, is empty when zero, and is safe for concurrent use.
type Keys [4096]atomic.Uint64

func (k *Keys) place(h driver.KeyHash) (*atomic.Uint64, uint64) {
	return &k[binary.BigEndian.Uint16(h[8:])%uint16(len(k))], binary.BigEndian.Uint64(h[:8])
}

// Add remembers a key.
func (k *Keys) Add(h driver.KeyHash) {
	place, mark := k.place(h)
	place.Store(mark)
}

// Remove forgets a key.
func (k *Keys) Remove(h driver.KeyHash) {
	place, mark := k.place(h)
	place.CompareAndSwap(mark, 0)
}

// Has reports whether a key is remembered.
func (k *Keys) Has(h driver.KeyHash) bool {
	place, mark := k.place(h)
	return place.Load() == mark
}
