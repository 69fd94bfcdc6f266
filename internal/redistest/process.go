package redistest

import (
	"os/exec"
	"runtime"
)

// process is a running server.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has been waited for
}

// start starts cmd. The thread that starts it lives as long as the server does:
// the signal that follows the parent's death follows the death of its thread.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = dieWithParent()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}
