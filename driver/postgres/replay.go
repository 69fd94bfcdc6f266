package postgres

import (
	"context"

	"github.com/idem-go/idem/driver"
)

// replay returns the record of a key that is taken to have an outcome, and whether
// it has one. It is read by a query that prepares no claim; when the guess is wrong,
// the claim costs a round trip more.
func (d *Driver) replay(ctx context.Context, s *session, kh driver.KeyHash, p driver.ClaimParams) (driver.Record, bool, error) {
	if !d.finished.Has(kh) {
		return driver.Record{}, false, nil
	}
	r, err := d.look(ctx, s, p.Key, p.Now)
	complete := r.StateAt(r.Now) == driver.StateComplete
	if err == nil && !complete {
		d.finished.Remove(kh)
	}
	return r, complete, err
}
