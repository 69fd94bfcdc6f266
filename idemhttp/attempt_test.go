package idemhttp

import (
	"errors"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// A claim that came too late is given up without having run: as not applied, unless
// an earlier attempt may have been.
func TestAttempt_Late(t *testing.T) {
	for number, run := range map[int]*idem.Run{0: nil, 1: {Attempt: 1}, 2: {Attempt: 2}} {
		for name, a := range map[string]*attempt{
			"too slow": {timer: time.NewTimer(time.Hour), unwatch: func() bool { return true }},
			"hung up":  {timer: time.NewTimer(time.Hour), unwatch: func() bool { return false }},
		} {
			if name == "too slow" {
				a.timer.Stop()
			}
			a.call.run = run
			_, err := a.exec(t.Context())
			if !errors.Is(err, errLate) || (err == errLate) != (number == 2) || a.ran {
				t.Errorf("%s, attempt %d: error is %v", name, number, err)
			}
		}
	}
}
