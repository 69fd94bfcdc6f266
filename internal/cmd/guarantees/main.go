// Command guarantees writes docs/guarantees.md, and the table of README.md, from
// the reports that conformance tests leave with -conformance.report.
//
//	guarantees [-check] [-out FILE] [-readme FILE] REPORT...
//
// In the readme only the lines between <!-- guarantees:begin --> and
// <!-- guarantees:end --> are replaced; -readme "" leaves it out. With -check
// nothing is written, and the exit status is 1 when a file differs. A report in
// which a rule failed is an error.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "guarantees:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	flags := flag.NewFlagSet("guarantees", flag.ContinueOnError)
	flags.SetOutput(w)
	check := flags.Bool("check", false, "write nothing; fail when a file differs")
	out := flags.String("out", "docs/guarantees.md", "the document to write, as a `file`")
	readme := flags.String("readme", "README.md", "the `file` whose table to replace; empty for none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("name at least one report")
	}
	var all results
	for _, name := range flags.Args() {
		if err := all.readFile(name); err != nil {
			return err
		}
	}
	if err := all.finish(); err != nil {
		return err
	}
	files := []file{{name: *out, text: document(&all)}}
	if *readme != "" {
		old, err := os.ReadFile(*readme)
		if err != nil {
			return err
		}
		text, err := replaceTable(string(old), statedTable(&all))
		if err != nil {
			return fmt.Errorf("%s: %w", *readme, err)
		}
		files = append(files, file{name: *readme, text: text})
	}
	return apply(files, *check, w)
}

// A file is one to write, or to compare.
type file struct{ name, text string }

// apply writes the files that differ or, to check, tells how they do.
func apply(files []file, check bool, w io.Writer) error {
	var stale []string
	for _, f := range files {
		old, err := os.ReadFile(f.name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if string(old) == f.text {
			continue
		}
		if !check {
			if err := os.WriteFile(f.name, []byte(f.text), 0o644); err != nil {
				return err
			}
			continue
		}
		stale = append(stale, f.name)
		summarize(w, f.name, string(old), f.text)
	}
	if len(stale) > 0 {
		return fmt.Errorf("%s differ from the reports; make docs writes them again", strings.Join(stale, " and "))
	}
	return nil
}

// summarize prints the lines that only one of two texts has, up to ten.
func summarize(w io.Writer, name, old, want string) {
	fmt.Fprintf(w, "--- %s\n+++ %s, from the reports\n", name, name)
	count := make(map[string]int)
	for l := range strings.Lines(old) {
		count[l]++
	}
	var added []string
	for l := range strings.Lines(want) {
		if count[l]--; count[l] < 0 {
			added = append(added, "+"+strings.TrimSuffix(l, "\n"))
		}
	}
	var lines []string
	for l := range strings.Lines(old) {
		if count[l] > 0 {
			count[l]--
			lines = append(lines, "-"+strings.TrimSuffix(l, "\n"))
		}
	}
	lines = append(lines, added...)
	if len(lines) == 0 {
		lines = []string{"the same lines in another order"}
	}
	for i, l := range lines {
		if i == 10 {
			fmt.Fprintf(w, "… and %d lines more\n", len(lines)-i)
			return
		}
		fmt.Fprintln(w, l)
	}
}
