// Package process starts the programs that tests need. They end with the test
// process, also when that is killed, where the system can do so.
package process

import (
	"os/exec"
	"runtime"
)

// Process is a running program. Its methods are safe for concurrent use.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait, once ended is closed
}

// User is an account of the system.
type User struct{ UID, GID int }

// Start starts cmd, as the user as unless that is nil. It owns cmd.SysProcAttr.
// The thread that starts the program lives as long as the program does: the
// signal that follows the parent's death follows the death of its thread.
func Start(cmd *exec.Cmd, as *User) (*Process, error) {
	cmd.SysProcAttr = attributes(as)
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Ended is closed when the program has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end of the program and returns what exec.Cmd.Wait returned.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Kill ends the program as a crash would, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}
