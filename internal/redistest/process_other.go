//go:build !linux

package redistest

import "syscall"

// dieWithParent: only Linux ends a process with its parent. Elsewhere a server
// outlives a test process that is killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
