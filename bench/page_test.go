package bench

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
)

// number writes a figure with three digits that count.
func number(v float64) string {
	switch {
	case v >= 99.5:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func count(v float64) string {
	if v == unknown {
		return "–"
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

const preamble = `# Performance

<!-- Written by bench (make bench); edits are lost. -->

What an idempotent call costs, beside what it cannot cost less than, what is written by hand, and the
libraries of others. Everything in a table was measured side by side, in one run, on the same servers
and with pools of the same size. Ratios are what counts: the times of another machine are others.

![Times as ratios](performance.svg)

## How it was measured

A subject has %v at a time, in %d rounds, and each round begins with another subject. Times are those of one
call, as its caller sees it: with one caller the median of the slice, with several what their throughput amounts
to, and of these the median of the rounds. A ratio is that of two subjects in the same round,
to the first row of the table; the median, and the middle half of all rounds. Every call computes a
fingerprint (SHA-256 of 60 bytes) where a fingerprint is compared; results have 256 bytes; a business
transaction inserts one row.

The machine: a virtual one, Linux %s, %d cores that this program, the servers and the proxies share over the loopback
interface, with a disk that flushes in about a tenth of a millisecond. The run was made %s. With one caller
the processors sleep while it waits, and what it takes to wake them varies: such figures differ by a third from run to run,
and a target within that is met by one and missed by the next. %s. PostgreSQL 15 and Redis 7 as installed by Debian;
PostgreSQL with its defaults (a commit is flushed), SQLite with the write-ahead log and synchronous FULL, bbolt
with its defaults, Redis without persistence.

Round trips are counted by a proxy in front of the server, flushes by PostgreSQL (pg_stat_wal, which counts the
server's own as well). The added round-trip time is the proxy's too: 1 ms, and what it costs to pass a proxy.

`

// page returns docs/performance.md.
func (f *figures) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, preamble, *slice, *rounds, runtime.GOARCH, runtime.NumCPU(), load(), "Go "+strings.TrimPrefix(runtime.Version(), "go"))
	all := f.targets()
	met := 0
	for _, t := range all {
		if t.met {
			met++
		}
	}
	fmt.Fprintf(&b, "## Targets\n\n%d of %d are met in this run.\n\n| what | target | measured | |\n| --- | ---: | ---: | --- |\n", met, len(all))
	for _, t := range all {
		verdict := "**missed**"
		if t.met {
			verdict = "met"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", t.what, t.want, t.got, verdict)
	}
	b.WriteString("\n## Beside the floors\n\n")
	for _, t := range f.floors {
		b.WriteString(t.markdown())
	}
	fmt.Fprintf(&b, "The core over the memory driver makes %.0f allocations for a first run and %.0f for a replay. Key and\nfingerprint are made before, here and in the two tables above.\n\n", f.allocsFirst, f.allocsReplay)
	b.WriteString("## Beside the libraries of others\n\nThe first row is idem, and the ratio says how many times as long the others take. Each is on its own ground:\n" +
		"river is a queue, whose first run waits for a worker, and only its replay is a fair comparison; dbos records workflows,\n" +
		"and looks for results of running ones once a second unless told otherwise.\n\n")
	for _, t := range f.peers {
		b.WriteString(t.markdown())
	}
	fmt.Fprintf(&b, "## %d duplicates at the same moment\n\nAll call with one key that is new. The one that runs takes %v; counted is the time from its end to the last answer.\n"+
		"Runs is the most that one key was run.\n\n", duplicates, effort)
	b.WriteString(crowdText("In one process", f.near))
	b.WriteString(crowdText(fmt.Sprintf("Over %d processes, %d calls each", processes, duplicates/processes), f.far))
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func (t *table) markdown() string {
	var b strings.Builder
	withCost := t.subjects[0].cost != nil
	fmt.Fprintf(&b, "### %s\n\n| | µs | ratio | middle half |", t.title)
	if withCost {
		b.WriteString(" round trips | flushes |")
	}
	b.WriteString("\n| --- | ---: | ---: | ---: |")
	if withCost {
		b.WriteString(" ---: | ---: |")
	}
	b.WriteByte('\n')
	for i, s := range t.subjects {
		r := t.ratios(i, 0)
		fmt.Fprintf(&b, "| %s | %s | %s | %s–%s |", s.name, number(t.time(i)), number(quantile(r, 0.5)), number(quantile(r, 0.25)), number(quantile(r, 0.75)))
		if withCost {
			c := s.cost
			if c == nil {
				c = &cost{unknown, unknown}
			}
			fmt.Fprintf(&b, " %s | %s |", count(c.trips), count(c.flushes))
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.String()
}
