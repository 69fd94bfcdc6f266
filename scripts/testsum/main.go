// Command testsum runs go test and prints a compact summary: the output of what
// failed, in full, and one line for each package.
//
//	testsum [-v] [-noskip] -- go-test-arguments... [-- go-test-arguments...]
//
// Each group of arguments is one run of go test, one after the other; -C and a
// directory, at its beginning, run it in another module. It exits
// with 1 when a run fails, when no test ran, and with -noskip when one was skipped.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

func main() {
	verbose := flag.Bool("v", false, "print a line for each top-level test")
	noskip := flag.Bool("noskip", false, "fail when a test was skipped")
	flag.Parse()

	start := time.Now()
	s := newSummary(os.Stdout, *verbose)
	failed := false
	for _, args := range groups(flag.Args()) {
		if err := run(s, args); err != nil {
			fmt.Fprintln(os.Stderr, "testsum: go test:", err)
			failed = true
		}
	}
	ok := s.finish(time.Since(start), *noskip, failed)
	if !ok {
		os.Exit(1)
	}
}

// groups cuts args at each "--".
func groups(args []string) [][]string {
	out := [][]string{nil}
	for _, a := range args {
		if a == "--" {
			out = append(out, nil)
			continue
		}
		out[len(out)-1] = append(out[len(out)-1], a)
	}
	if len(out[0]) == 0 && len(out) > 1 {
		out = out[1:]
	}
	return out
}

// command puts -json into the arguments of go test, of which -C has to be the first.
func command(args []string) []string {
	first := 0
	if len(args) > 1 && args[0] == "-C" {
		first = 2
	}
	return slices.Concat([]string{"test"}, args[:first], []string{"-json"}, args[first:])
}

func run(s *summary, args []string) error {
	cmd := exec.Command("go", command(args)...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := s.read(stdout)
	if err := cmd.Wait(); err != nil {
		return err
	}
	return readErr
}
