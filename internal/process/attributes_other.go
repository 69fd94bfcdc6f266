//go:build !unix

package process

import "syscall"

func attributes(*User) *syscall.SysProcAttr { return nil }

// Abort ends the program: the system has no gentler way.
func (p *Process) Abort() { _ = p.cmd.Process.Kill() }
