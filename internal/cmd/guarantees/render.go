package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/idem-go/idem/driver"
)

const (
	beginMark = "<!-- guarantees:begin -->"
	endMark   = "<!-- guarantees:end -->"
)

// replaceTable puts the table between the marks of a text.
func replaceTable(text, table string) (string, error) {
	before, rest, ok := strings.Cut(text, beginMark)
	if !ok {
		return "", errors.New("has no " + beginMark)
	}
	_, after, ok := strings.Cut(rest, endMark)
	if !ok {
		return "", errors.New("has no " + endMark + " after " + beginMark)
	}
	return before + beginMark + "\n" + table + endMark + after, nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// stated lists what a driver states, in the words of the documentation.
var stated = []struct {
	name  string
	value func(driver.Guarantees) string
}{
	{"a claim survives a crash of the store", func(g driver.Guarantees) string { return string(g.DurableClaim) }},
	{"business rows and outcome commit together", func(g driver.Guarantees) string { return yesNo(g.AtomicWithBusinessData) }},
	{"leases are judged by the clock of", func(g driver.Guarantees) string { return "the " + string(g.Clock) }},
	{"one store is shared by", func(g driver.Guarantees) string { return string(g.Sharing) }},
	{"a duplicate beside an open transaction gets", func(g driver.Guarantees) string { return string(g.TxDuplicate) }},
	{"a transaction keeps other writers waiting", func(g driver.Guarantees) string { return yesNo(g.SingleWriter) }},
	{"a failover can lose", func(g driver.Guarantees) string { return g.Failover }},
	{"when memory or disk is full", func(g driver.Guarantees) string { return g.WhenFull }},
}

// statedTable is the table of guarantees by driver.
func statedTable(r *results) string {
	header := []string{""}
	for _, d := range r.drivers {
		header = append(header, d.name)
	}
	rows := [][]string{header}
	for _, s := range stated {
		row := []string{s.name}
		for _, d := range r.drivers {
			row = append(row, s.value(*d.stated))
		}
		rows = append(rows, row)
	}
	return table(rows)
}

// table renders rows, the first of which is the header.
func table(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		for _, cell := range row {
			fmt.Fprintf(&b, "| %s ", strings.ReplaceAll(cell, "|", `\|`))
		}
		b.WriteString("|\n")
		if i == 0 {
			b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
		}
	}
	return b.String()
}

// document is the whole of docs/guarantees.md.
func document(r *results) string {
	var b strings.Builder
	b.WriteString("# Guarantees\n\n" +
		"<!-- Written by internal/cmd/guarantees from what the conformance suite found; edits are lost. -->\n\n" +
		"What each driver states, and which rules of the conformance suite (package `conformancetest`) it was\n" +
		"found to keep. `make docs` runs the suite and writes this page; CI fails when the two differ.\n\n" +
		"## What the drivers state\n\n")
	b.WriteString(statedTable(r))
	b.WriteString("\n## Configurations\n\nThe suite runs in each of these; a rule counts as kept when it is kept in all.\n\n")
	for _, d := range r.drivers {
		configs := strings.Join(d.configs, ", ")
		if configs == "" {
			configs = "there is one"
		}
		fmt.Fprintf(&b, "* %s: %s\n", d.name, configs)
	}
	b.WriteString("\n## Rules\n\n`yes`: kept. `n/a`: not applicable, for the reason below. `known`: known not to be kept, for the reason\n" +
		"below. `-`: the rule is about transactions, and the driver has none.\n")
	area := ""
	var rows [][]string
	flush := func() {
		if rows != nil {
			fmt.Fprintf(&b, "\n### %s\n\n%s", area, table(rows))
		}
	}
	for _, rule := range r.rules {
		if a, _, _ := strings.Cut(rule.Rule, "/"); a != area {
			flush()
			area = a
			header := []string{"rule", "promise"}
			for _, d := range r.drivers {
				header = append(header, d.name)
			}
			rows = [][]string{header}
		}
		row := []string{"`" + rule.Rule + "`", rule.Promise}
		for _, d := range r.drivers {
			row = append(row, cells[d.kept(rule.Rule)])
		}
		rows = append(rows, row)
	}
	flush()
	notes(&b, r, "n/a", "Not applicable")
	notes(&b, r, "skip", "Known not to be kept")
	return b.String()
}

var cells = map[string]string{"pass": "yes", "n/a": "n/a", "skip": "known", "": "-"}

// notes lists the reasons of a status, by driver; nothing when there are none.
func notes(b *strings.Builder, r *results, status, title string) {
	for _, d := range r.drivers {
		reasons, rules := d.reasons(status)
		for _, reason := range reasons {
			if title != "" {
				fmt.Fprintf(b, "\n## %s\n\n", title)
				title = ""
			}
			fmt.Fprintf(b, "* %s: %s (`%s`)\n", d.name, reason, strings.Join(rules[reason], "`, `"))
		}
	}
}
