// Package differential asks every driver the same questions: its tests run one random
// sequence of verbs on all of them, and on the pure functions of package driver, and
// want one answer.
package differential
