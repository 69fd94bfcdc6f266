package idemhttp

import (
	"net/http"
	"slices"
	"strings"
)

// neverStored reports whether a field of the handler's is not stored: it is secret,
// concerns one connection, or is made anew with each answer.
func neverStored(name string) bool {
	switch name {
	case "Date", "Set-Cookie", "Www-Authenticate", "Authorization":
		return true
	}
	return connectionField(name)
}

// connectionField reports whether a field concerns one connection (RFC 9110, section 7.6.1).
func connectionField(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return strings.HasPrefix(name, "Proxy-")
}

// stored returns the part of an answer that is stored: the fields that the handler
// added, changed or took away, but for those that are not kept.
func (g *Guard) stored(r Response, outer http.Header) Response {
	if len(outer) == 0 && len(r.Trailer) == 0 && !g.dropsAny(r.Header) {
		return r
	}
	kept := make(http.Header, len(r.Header))
	for name, values := range r.Header {
		if before, ok := outer[name]; ok && slices.Equal(before, values) {
			continue
		}
		if !g.dropped(name, r.Header["Connection"]) {
			kept[name] = values
		}
	}
	for name := range outer {
		if _, ok := r.Header[name]; !ok && !g.dropped(name, nil) {
			kept[name] = nil
		}
	}
	r.Header = kept
	for name := range r.Trailer {
		if g.dropped(name, nil) {
			trailer := r.Trailer.Clone()
			for name := range r.Trailer {
				if g.dropped(name, nil) {
					delete(trailer, name)
				}
			}
			r.Trailer = trailer
			break
		}
	}
	return r
}

func (g *Guard) dropsAny(h http.Header) bool {
	for name := range h {
		if g.dropped(name, nil) { // Connection, which names others, is dropped itself
			return true
		}
	}
	return false
}

// dropped reports whether a field is not stored. A handler may have written its
// name in another spelling.
func (g *Guard) dropped(name string, connection []string) bool {
	name = http.CanonicalHeaderKey(name)
	if neverStored(name) || name == g.cfg.ReplayedHeader || slices.Contains(g.cfg.DropHeaders, name) {
		return true
	}
	for _, field := range connection {
		for named := range strings.SplitSeq(field, ",") {
			if strings.EqualFold(strings.TrimSpace(named), name) {
				return true
			}
		}
	}
	return false
}

// send writes an answer: the handler's own, or a stored one. Both take this way, so
// that they look alike on the wire.
func send(w http.ResponseWriter, r Response) {
	h := w.Header()
	for name, values := range r.Header {
		if len(values) == 0 && !suppressible(name) {
			delete(h, name)
			continue
		}
		h[name] = values
	}
	if len(r.Trailer) > 0 {
		names := make([]string, 0, len(r.Trailer))
		for name := range r.Trailer {
			names = append(names, name)
		}
		slices.Sort(names)
		h.Add("Trailer", strings.Join(names, ", ")) // handlers around the guard may have their own
	}
	w.WriteHeader(r.Status)
	if len(r.Body) > 0 {
		w.Write(r.Body) // an error means that the client has gone
	}
	for name, values := range r.Trailer {
		h[name] = values
	}
}

// suppressible reports whether net/http adds a field of this name by itself unless
// it is there without values.
func suppressible(name string) bool {
	return name == "Content-Type" || name == "Date"
}
