// Package seed holds the test that idem began with: 64 equal calls at the same
// moment, on every driver, in one process and in two, are one run, one business
// row and 64 equal results; or one result and 63 times in flight.
package seed
