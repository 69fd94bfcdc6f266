// Package faults is the laboratory in which idem is broken on purpose: processes
// call operations concurrently while their stores, their connections and they
// themselves are stopped and killed, and what they did is judged from outside.
//
// It is a module of its own, so that users of idem do not inherit what only its
// checks need. Its tests need Linux. docs/reliability.md tells what is injected,
// what is checked, and how to run it.
package faults
