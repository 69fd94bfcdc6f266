//go:build unix

package process

import "syscall"

func credential(as *User) *syscall.Credential {
	if as == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(as.UID), Gid: uint32(as.GID)}
}

// Abort asks the program to end at once but in its own way, with SIGQUIT.
func (p *Process) Abort() { _ = p.cmd.Process.Signal(syscall.SIGQUIT) }
