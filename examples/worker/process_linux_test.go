package main

import (
	"os/exec"
	"syscall"
)

// endWithParent makes sure that no worker outlives the test.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
