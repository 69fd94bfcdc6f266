package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

type line struct{ test, text string }

// pkg is what is known of a package whose tests have not ended.
type pkg struct {
	lines  []line
	ended  map[string]string // test -> pass, fail or skip
	passed int
}

// summary gathers the events of any number of runs.
type summary struct {
	w       io.Writer
	verbose bool
	open    map[string]*pkg

	packages, tests int
	skips, failures []string
}

func newSummary(w io.Writer, verbose bool) *summary {
	return &summary{w: w, verbose: verbose, open: make(map[string]*pkg)}
}

// read takes the events of one run of go test until r ends.
func (s *summary) read(r io.Reader) error {
	b := bufio.NewReader(r)
	for {
		text, err := b.ReadString('\n')
		if text != "" {
			var e event
			if json.Unmarshal([]byte(text), &e) == nil && e.Action != "" {
				s.take(e)
			} else {
				fmt.Fprint(s.w, text)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.w, e.Output)
		return
	case "build-fail":
		return
	}
	p := s.open[e.Package]
	if p == nil {
		p = &pkg{ended: make(map[string]string)}
		s.open[e.Package] = p
	}
	switch e.Action {
	case "output":
		p.lines = append(p.lines, line{e.Test, e.Output})
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.end(e, p)
			delete(s.open, e.Package)
			return
		}
		p.ended[e.Test] = e.Action
		s.tests++
		name := e.Package + "." + e.Test
		switch e.Action {
		case "pass":
			p.passed++
			p.drop(e.Test)
		case "fail":
			s.failures = append(s.failures, name)
		case "skip":
			s.skips = append(s.skips, name+": "+p.reason(e.Test))
			p.drop(e.Test)
		}
		// Of a failure, go test's own line is printed at the end of the package.
		if s.verbose && e.Action != "fail" && !strings.Contains(e.Test, "/") {
			fmt.Fprintf(s.w, "--- %s: %s (%.2fs)\n", strings.ToUpper(e.Action), e.Test, e.Elapsed)
		}
	}
}

// drop forgets the output of a test that is of no interest any more.
func (p *pkg) drop(test string) {
	kept := p.lines[:0]
	for _, l := range p.lines {
		if l.test != test {
			kept = append(kept, l)
		}
	}
	p.lines = kept
}

// print writes the output that was kept, without the marks of -v.
func (p *pkg) print(w io.Writer) {
	for _, l := range p.lines {
		if !strings.HasPrefix(l.text, "=== ") {
			fmt.Fprint(w, l.text)
		}
	}
}

// reason returns what a skipped test logged.
func (p *pkg) reason(test string) string {
	var out []string
	for _, l := range p.lines {
		text := strings.TrimSpace(l.text)
		if l.test == test && !strings.HasPrefix(text, "===") && !strings.HasPrefix(text, "---") {
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

// end prints the result of a package, after the output of what failed in it.
func (s *summary) end(e event, p *pkg) {
	switch e.Action {
	case "skip":
		fmt.Fprintf(s.w, "?   \t%s\t[no test files]\n", e.Package)
		return
	case "fail":
		s.packages++
		p.print(s.w)
		// Go prints the FAIL line itself, except for a package that did not build.
		if len(p.lines) == 0 {
			fmt.Fprintf(s.w, "FAIL\t%s\n", e.Package)
		}
		s.failures = append(s.failures, e.Package)
		return
	}
	s.packages++
	fmt.Fprintf(s.w, "ok  \t%s\t%.3fs\t%d tests\n", e.Package, e.Elapsed, p.passed)
}

// finish prints the totals and reports whether everything is as it should be.
// A package without an end, as when go test was killed, is a failure.
func (s *summary) finish(took time.Duration, noskip, failed bool) bool {
	for name, p := range s.open {
		p.print(s.w)
		s.failures = append(s.failures, name+": did not end")
	}
	for _, name := range s.failures {
		fmt.Fprintln(s.w, "failed: ", name)
	}
	for _, name := range s.skips {
		fmt.Fprintln(s.w, "skipped:", name)
	}
	ok := !failed && len(s.failures) == 0 && s.tests > 0 && (!noskip || len(s.skips) == 0)
	verdict := "PASS"
	if !ok {
		verdict = "FAIL"
	}
	fmt.Fprintf(s.w, "%s: %d packages, %d tests and subtests, %d skipped, %d failures, %.0fs\n",
		verdict, s.packages, s.tests, len(s.skips), len(s.failures), took.Seconds())
	return ok
}
