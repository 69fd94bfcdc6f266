package process

import "syscall"

func attributes(as *User) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: credential(as)}
}
