package customdriver

import (
	"testing"

	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/driver"
)

func TestConformance(t *testing.T) {
	conformancetest.Run(t, conformancetest.Harness{
		New:    func(t testing.TB) driver.Driver { return New(t.TempDir()) },
		Reopen: func(t testing.TB, d driver.Driver) driver.Driver { return New(d.(*Driver).dir) },
	})
}
