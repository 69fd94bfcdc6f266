package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/idem-go/idem/driver"
)

// line is one line of a report: of a rule, or of what a driver states.
type line struct {
	Driver     string             `json:"driver"`
	Config     string             `json:"config"`
	Rule       string             `json:"rule"`
	Promise    string             `json:"promise"`
	Status     string             `json:"status"`
	Reason     string             `json:"reason"`
	Guarantees *driver.Guarantees `json:"guarantees"`
}

// results is what all reports say together.
type results struct {
	drivers []*driverResults // in the order of their names
	rules   []line           // Rule and Promise, in the order of the suite
}

// driverResults is what the reports say about one driver.
type driverResults struct {
	name    string
	stated  *driver.Guarantees
	configs []string // in the order of their names
	lines   []line
}

func (r *results) readFile(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	scan := bufio.NewScanner(bytes.NewReader(b))
	scan.Buffer(nil, 1<<24)
	for n := 1; scan.Scan(); n++ {
		dec := json.NewDecoder(bytes.NewReader(scan.Bytes()))
		// A field that this command does not know would be left out of the document.
		dec.DisallowUnknownFields()
		var l line
		if err := dec.Decode(&l); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if err := r.add(l); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	return scan.Err()
}

func (r *results) add(l line) error {
	if l.Driver == "" {
		return errors.New("a line without a driver")
	}
	i := slices.IndexFunc(r.drivers, func(d *driverResults) bool { return d.name == l.Driver })
	if i < 0 {
		i = len(r.drivers)
		r.drivers = append(r.drivers, &driverResults{name: l.Driver})
	}
	d := r.drivers[i]
	if l.Config != "" && !slices.Contains(d.configs, l.Config) {
		d.configs = append(d.configs, l.Config)
	}
	if l.Guarantees != nil {
		if d.stated != nil && *d.stated != *l.Guarantees {
			return fmt.Errorf("%s states one thing in one configuration and another in %q", l.Driver, l.Config)
		}
		d.stated = l.Guarantees
		return nil
	}
	switch l.Status {
	case "fail":
		return fmt.Errorf("%s breaks %s (%s): %s", l.Driver, l.Rule, l.Config, l.Reason)
	case "pass", "skip", "n/a":
	default:
		return fmt.Errorf("rule %s has the status %q", l.Rule, l.Status)
	}
	d.lines = append(d.lines, l)
	return nil
}

// finish orders what was read. Test binaries of several drivers write to one
// file at a time, so the order of its lines means something only within a driver.
func (r *results) finish() error {
	slices.SortFunc(r.drivers, func(a, b *driverResults) int {
		return strings.Compare(strings.ToLower(a.name), strings.ToLower(b.name))
	})
	promises := make(map[string]string)
	for _, d := range r.drivers {
		if d.stated == nil {
			return fmt.Errorf("no report says what %s states", d.name)
		}
		slices.Sort(d.configs)
		for _, l := range d.lines {
			promise, ok := promises[l.Rule]
			if !ok {
				promises[l.Rule] = l.Promise
				r.rules = append(r.rules, line{Rule: l.Rule, Promise: l.Promise})
			} else if promise != l.Promise {
				return fmt.Errorf("%s is %q in one report and %q in another: they come from two versions", l.Rule, promise, l.Promise)
			}
		}
	}
	if len(r.rules) == 0 {
		return errors.New("the reports name no rules")
	}
	return nil
}

// kept is how one driver fared with one rule, over all its configurations: "",
// when it was never run, "pass", "skip" or "n/a".
func (d *driverResults) kept(rule string) (status string) {
	for _, l := range d.lines {
		switch {
		case l.Rule != rule:
		case l.Status == "skip" || status == "":
			status = l.Status
		case l.Status == "pass" && status == "n/a":
			status = l.Status
		}
	}
	return status
}

// reasons returns why rules of that status were not kept, each with its rules.
func (d *driverResults) reasons(status string) (reasons []string, rules map[string][]string) {
	rules = make(map[string][]string)
	for _, l := range d.lines {
		if l.Status != status || d.kept(l.Rule) != status {
			continue
		}
		if len(rules[l.Reason]) == 0 {
			reasons = append(reasons, l.Reason)
		}
		if !slices.Contains(rules[l.Reason], l.Rule) {
			rules[l.Reason] = append(rules[l.Reason], l.Rule)
		}
	}
	return reasons, rules
}
