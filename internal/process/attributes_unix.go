//go:build unix && !linux

package process

import "syscall"

// attributes: only Linux ends a process with its parent. Elsewhere a program
// outlives a test process that is killed.
func attributes(as *User) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential(as)}
}
