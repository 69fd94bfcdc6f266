package memory_test

import (
	"testing"

	"github.com/idem-go/idem/conformancetest"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
)

func TestConformance(t *testing.T) {
	conformancetest.Run(t, conformancetest.Harness{
		New: func(testing.TB) driver.Driver { return memory.New() },
	})
}
