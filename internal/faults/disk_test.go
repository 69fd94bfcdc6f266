//go:build linux

package faults

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk is a file system of its own, which can be filled. Without the right to
// mount one the test's directory takes its place, and is never full.
type smallDisk struct {
	dir     string
	mounted bool
}

const diskSize = "96m"

func newSmallDisk(t *testing.T) smallDisk {
	t.Helper()
	d := smallDisk{dir: t.TempDir()}
	if err := unix.Mount("tmpfs", d.dir, "tmpfs", 0, "size="+diskSize); err != nil {
		t.Logf("no disk can be mounted, and so none is full: %v", err)
		return d
	}
	d.mounted = true
	t.Cleanup(func() { unix.Unmount(d.dir, unix.MNT_DETACH) })
	return d
}

// fill takes all the space that is left, and returns what gives it back.
func (d smallDisk) fill() (empty func() error, err error) {
	name := filepath.Join(d.dir, "balloon")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var size int64
	for step := int64(32 << 20); step >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, size, step); {
		case err == nil:
			size += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		case !errors.Is(err, unix.EINTR):
			return nil, errors.Join(err, os.Remove(name))
		}
	}
	return func() error { return os.Remove(name) }, nil
}
