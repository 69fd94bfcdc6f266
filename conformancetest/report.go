package conformancetest

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/idem-go/idem/driver"
)

// reportLine is one line of the report: of a rule, or, when Rule is empty, of
// what the driver states.
type reportLine struct {
	Driver     string             `json:"driver"`
	Config     string             `json:"config,omitempty"`
	Rule       string             `json:"rule,omitempty"`
	Promise    string             `json:"promise,omitempty"`
	Status     string             `json:"status,omitempty"`
	Reason     string             `json:"reason,omitempty"`
	Guarantees *driver.Guarantees `json:"guarantees,omitempty"`
}

// report appends lines to the file named by the flag; without the flag it does nothing.
type report struct {
	t      testing.TB
	file   *os.File
	driver string
	config string
}

func openReport(t testing.TB, g driver.Guarantees, config string) *report {
	t.Helper()
	r := &report{t: t, driver: g.Backend, config: config}
	if *reportFlag == "" {
		return r
	}
	f, err := os.OpenFile(*reportFlag, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("conformance report: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("conformance report: %v", err)
		}
	})
	r.file = f
	r.write(reportLine{Guarantees: &g})
	return r
}

func (r *report) rule(x rule, status, reason string) {
	r.write(reportLine{Rule: x.id, Promise: x.promise, Status: status, Reason: reason})
}

func (r *report) write(l reportLine) {
	if r.file == nil {
		return
	}
	l.Driver, l.Config = r.driver, r.config
	b, err := json.Marshal(l)
	if err != nil {
		r.t.Errorf("conformance report: %v", err)
		return
	}
	// One write a line: test binaries of several packages append to one file.
	if _, err := r.file.Write(append(b, '\n')); err != nil {
		r.t.Errorf("conformance report: %v", err)
	}
}
