//go:build linux

package faults

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"strconv"
	"sync"

	"github.com/idem-go/idem/internal/proxy"
)

// requests tells what the requests are that pass through a proxy, and where they end.
type requests struct {
	mu      sync.Mutex
	last    map[int64]string  // by connection
	scripts map[string]string // of Redis, by the digest of their text
}

// What a request of a driver is, by words of its text: the first that is there counts.
var (
	sqlVerbs = []struct{ words, verb string }{
		{"COMMIT\x00", "COMMIT"},
		{"SET state = 2", "complete"},
		{"SET state = 3", "release"},
		{"SET lease_until = least(", "release"},
		{"SET lease_until = c.now", "renew"},
		{"ON CONFLICT (kh) DO NOTHING", "claim"},
		{"SET state = 1", "claim"},
		{"SAVEPOINT", "begin"},
		{"FOR UPDATE\x00", "begin"},
	}
	scriptVerbs = []struct{ words, verb string }{
		{"-- driver.Record.AfterComplete", "complete"},
		{"-- driver.Record.AfterRelease", "release"},
		{"-- driver.Record.AfterRenew", "renew"},
		{"-- driver.Record.AfterClaim", "claim"},
	}
	syncMessage = []byte{'S', 0, 0, 0, 4}
	readyPrefix = []byte{'Z', 0, 0, 0, 5}
)

// note returns what the request is that a chunk belongs to, and whether the chunk ends
// a request, or its reply.
func (r *requests) note(c *proxy.Conn, d proxy.Direction, chunk []byte) (verb string, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last, r.scripts = make(map[int64]string), make(map[string]string)
	}
	if bytes.HasPrefix(chunk, []byte("*")) || d == proxy.ToClient && r.last[c.ID] != "" && bytes.HasSuffix(chunk, []byte("\r\n")) {
		if d == proxy.ToServer {
			r.last[c.ID] = r.command(chunk)
		}
		return r.last[c.ID], bytes.HasSuffix(chunk, []byte("\r\n"))
	}
	if d == proxy.ToClient {
		n := len(chunk)
		return r.last[c.ID], n >= 6 && bytes.Equal(chunk[n-6:n-1], readyPrefix)
	}
	r.last[c.ID] = "other"
	for _, v := range sqlVerbs {
		if bytes.Contains(chunk, []byte(v.words)) {
			r.last[c.ID] = v.verb
			break
		}
	}
	return r.last[c.ID], bytes.HasSuffix(chunk, syncMessage) || bytes.HasPrefix(chunk, []byte("Q"))
}

// command says what a command of Redis is. The client sends a script's text when the
// server does not know its digest, and from then on the digest.
func (r *requests) command(chunk []byte) string {
	parts := bytes.SplitN(chunk, []byte("\r\n"), 6) // *n $len name $len argument
	if len(parts) < 6 {
		return "other"
	}
	switch name := bytes.ToLower(parts[2]); {
	case bytes.Equal(name, []byte("evalsha")):
		if verb := r.scripts[string(parts[4])]; verb != "" {
			return verb
		}
	case bytes.Equal(name, []byte("eval")):
		for _, v := range scriptVerbs {
			if bytes.Contains(chunk, []byte(v.words)) {
				n, err := strconv.Atoi(string(parts[3][1:]))
				at := bytes.Index(chunk, parts[3]) + len(parts[3]) + 2
				if err != nil || at+n > len(chunk) {
					return v.verb
				}
				digest := sha1.Sum(chunk[at : at+n])
				r.scripts[hex.EncodeToString(digest[:])] = v.verb
				return v.verb
			}
		}
	}
	return "other"
}
