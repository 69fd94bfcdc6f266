// Package soak loads the stores for as long as it is told to: its tests want answers, and
// memory and goroutines that do not grow.
package soak
