// Package model holds an exhaustive search of the protocol between holders and a
// store: every order of sends, deliveries, lost replies, re-sends, crashes, purges
// and ticks of the clock, over the pure functions of package driver, within bounds
// that its test names.
package model
