// Package bench measures idem beside what it is compared with: the bare business
// transaction, the patterns that are written by hand, and the libraries of others.
// It is a module of its own, so that users do not inherit those libraries.
//
//	make bench
//
// starts throwaway servers, measures everything side by side in several rounds,
// and writes docs/performance.md and docs/performance.svg. "go test ." makes one
// short round, writes nothing, and fails when a count of round trips, of flushes
// or of runs is not what it has to be; it says nothing about time.
//
//	make growth
//
// does the same with stores of ten thousand to ten million keys, and with purging
// beside claims, and writes the tables of docs/scale.md.
package bench
