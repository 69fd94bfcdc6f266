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
	results, err := s.exec(ctx, d.stmt(sqlReplay, uuid(kh), instant(p.Now)))
	if err != nil {
		return driver.Record{}, false, err
	}
	var r driver.Record
	if len(results[0].rows) > 0 {
		if r, err = only(results[0]).recordOf(p.Key); err != nil {
			return r, false, err
		}
	}
	if r.StateAt(r.Now) != driver.StateComplete {
		d.finished.Remove(kh)
		return driver.Record{}, false, nil
	}
	return r, true, nil
}
