package pgtest

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
)

const dirPrefix = "idem-pgtest-"

// newDir makes a directory that this process holds a lock in, and removes those
// that processes left behind which were killed.
func newDir() (string, error) {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range left {
		if f, err := os.Open(filepath.Join(dir, "owner")); err == nil {
			if lock(f) == nil {
				os.RemoveAll(dir)
			}
			f.Close()
		}
	}
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return "", err
	}
	// The file appears under its name only once it is locked, and stays open, and
	// with it the lock, until the process ends. Children do not inherit it.
	name := filepath.Join(dir, "owner")
	f, err := os.Create(name + ".new")
	if err != nil {
		return "", err
	}
	if err := lock(f); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return "", err
	}
	owned.Store(dir, f)
	return dir, os.Rename(name+".new", name)
}

// owned keeps the lock files from being closed by the garbage collector.
var owned sync.Map
