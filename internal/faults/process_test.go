//go:build linux

package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is a running program.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has been waited for; err is set then
	err   error
}

// startProcess starts cmd. The thread that starts it lives as long as the process
// does: the signal that follows the parent's death follows that of its thread.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
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
	return p, <-started
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// slot is the place of one worker, which is followed by another when it is killed.
type slot struct {
	spec       spec
	dir        string
	n          int
	generation int
	proc       *process
	in         io.WriteCloser
	stopped    chan struct{} // closed when a stopped process has been continued; nil before
}

func (s *slot) start() error {
	s.generation++
	spec := s.spec
	spec.Name = s.name()
	spec.Seed += uint64(s.n)<<32 + uint64(s.generation)
	spec.Journal = filepath.Join(s.dir, spec.Name+".jsonl")
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	s.proc, err = startProcess(cmd)
	return err
}

// working reports whether the process has come so far as to call.
func (s *slot) working() bool { return callsIn(filepath.Join(s.dir, s.name()+".jsonl")) > 0 }

func (s *slot) name() string { return fmt.Sprintf("w%d-%d", s.n, s.generation) }

// resumed reports whether the process runs, as far as this program has to do with it.
func (s *slot) resumed() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return s.stopped == nil
	}
}

// stop stops the process, and continues it after d.
func (s *slot) stop(d time.Duration) error {
	p := s.proc.cmd.Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	done := make(chan struct{})
	s.stopped = done
	time.AfterFunc(d, func() { _ = p.Signal(syscall.SIGCONT); close(done) }) // it may have been killed meanwhile
	return nil
}

// finish lets the process end by itself.
func (s *slot) finish(limit time.Duration) error {
	if s.stopped != nil {
		<-s.stopped
	}
	s.in.Close()
	select {
	case <-s.proc.ended:
		return s.proc.err
	case <-time.After(limit):
		_ = s.proc.cmd.Process.Signal(syscall.SIGQUIT) // the goroutines, on standard error
		select {
		case <-s.proc.ended:
		case <-time.After(5 * time.Second):
			s.proc.kill()
		}
		return fmt.Errorf("it had not ended after %v", limit)
	}
}
