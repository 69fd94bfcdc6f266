//go:build unix && !solaris && !aix

package pgtest

import (
	"os"
	"syscall"
)

// lock locks a file until it is closed, or fails at once when it is locked.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
