// Package deadline tells a context that ends at its deadline from one that may be
// cancelled before.
package deadline

import "context"

// Only is a context that nothing ends before its deadline while a call has it. A call
// that observes deadlines by itself needs no goroutine to observe this one's end.
type Only interface {
	context.Context
	OnlyDeadline()
}
