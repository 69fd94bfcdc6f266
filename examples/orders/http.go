package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/fingerprint"
)

const maxBody = 64 << 10

func handler(orders store, allowPause bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			answer(w, http.StatusRequestEntityTooLarge, refusal{"request_too_large", "the body is too large, or broke off"})
			return
		}
		// What cannot be an order at all is refused before the key is touched: the
		// client may mend it and use the same key.
		var req request
		if err := json.Unmarshal(body, &req); err != nil || req.Item == "" || req.Quantity < 1 {
			answer(w, http.StatusBadRequest, refusal{"invalid_order", `want {"item":"tea","quantity":2}`})
			return
		}
		if allowPause {
			req.pause, _ = time.ParseDuration(r.Header.Get("Demo-Pause"))
		}
		key := idem.Key{Scope: tenant(r), ID: keyID(r)}
		fp := fingerprint.Bytes([]byte(r.Method), []byte(r.URL.RequestURI()), body).WithSummary("POST " + r.URL.Path)
		res, err := orders.Create(r.Context(), key, fp, req)
		if err != nil {
			refuse(w, err)
			return
		}
		if res.Replayed {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		answer(w, http.StatusCreated, res.Value)
	})
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		n, err := orders.Count(r.Context(), r.URL.Query().Get("item"))
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, map[string]int{"count": n})
	})
	return mux
}

// tenant says whose keys these are. An application takes it from the principal
// that it has authenticated, never from a header that anybody can set.
func tenant(r *http.Request) string {
	if t := r.Header.Get("Demo-Tenant"); t != "" {
		return t
	}
	return "demo"
}

// keyID reads the Idempotency-Key header: bare, or between quotes as
// draft-ietf-httpapi-idempotency-key-header has it. Both name the same key. A
// header that is missing or sent twice is an invalid key.
func keyID(r *http.Request) string {
	values := r.Header.Values("Idempotency-Key")
	if len(values) != 1 {
		return ""
	}
	v := values[0]
	if len(v) >= 2 && strings.HasPrefix(v, `"`) && strings.HasSuffix(v, `"`) {
		v = v[1 : len(v)-1]
	}
	return v
}

// refusal is the body of an answer that is no order.
type refusal struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // an error means that the client has gone
}
