package postgres

import (
	"context"
	"encoding/binary"
	"sync/atomic"

	"github.com/idem-go/idem/driver"
)

// finished remembers, of some keys, that they had an outcome when this process saw
// them last. It is a guess of what a claim will find, and decides only what is sent
// first: of such a key the record is read, by a query that prepares no claim. When
// the guess is wrong, the claim costs a round trip more. What two keys of one place
// forget of each other does no harm, and nor does a key that is taken for another.
type finished [4096]atomic.Uint64

func (f *finished) place(kh driver.KeyHash) (*atomic.Uint64, uint64) {
	return &f[binary.BigEndian.Uint16(kh[8:])%uint16(len(f))], binary.BigEndian.Uint64(kh[:8])
}

func (f *finished) add(kh driver.KeyHash) {
	place, mark := f.place(kh)
	place.Store(mark)
}

func (f *finished) has(kh driver.KeyHash) bool {
	place, mark := f.place(kh)
	return place.Load() == mark
}

// replay returns the record of a key that is taken to have an outcome, and whether
// it has one.
func (d *Driver) replay(ctx context.Context, s *session, kh driver.KeyHash, p driver.ClaimParams) (driver.Record, bool, error) {
	if !d.finished.has(kh) {
		return driver.Record{}, false, nil
	}
	r, err := d.look(ctx, s, p.Key, p.Now)
	return r, r.StateAt(r.Now) == driver.StateComplete, err
}
