//go:build !linux

package main

import "syscall"

// dieWithParent: only Linux ends a process with its parent.
func dieWithParent() *syscall.SysProcAttr { return nil }
