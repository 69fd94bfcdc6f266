// Package idemhttp guards HTTP endpoints: a request that carries a key runs its
// handler once, and every repeat gets the first answer, byte for byte.
//
//	guard, err := idemhttp.NewTx(postgres.New(pool), idemhttp.Config{
//		Operation: idem.Config{Name: "orders.create", Retention: 7 * 24 * time.Hour},
//		Scope:     func(r *http.Request) (string, error) { return tenantOf(r) },
//	})
//	mux.Handle("POST /orders", guard.Handler(http.HandlerFunc(createOrder)))
//
//	func createOrder(w http.ResponseWriter, r *http.Request) {
//		tx := idemhttp.Tx[pgx.Tx](r.Context())
//		// business writes through tx; they, the answer and the key commit together
//	}
//
// [New] runs the handler under a lease, for effects outside the store, and
// [NewTx] inside a transaction of the store. Settings of one route are a changed
// copy of [Config]. [Guard.Operation] is the operation itself: Lookup for a page
// that shows what is under way, Resolve for a support desk, Maintain for the purge.
//
// # A request
//
// The key is in the field Idempotency-Key (draft-ietf-httpapi-idempotency-key-header),
// bare or as an RFC 8941 string. Only POST and PATCH are guarded, unless
// [Config.Methods] says otherwise. The body is read, up to 1 MiB, before the key is
// claimed; the handler reads the same bytes. Scope says whose key it is: guard
// endpoints behind authentication and authorisation, so that a replay cannot
// outlive a permission. What is refused in front of the guard does not touch the key.
//
// # An answer
//
// The handler's answer is held back until it is durable, then sent as it is. The
// guard therefore keeps the whole answer in memory, and a handler cannot stream:
// see [ErrStreaming]. Repeats get the stored answer and Idempotent-Replayed: true,
// or a refusal: a problem document (RFC 9457) with a stable code, and two booleans
// that say whether to retry, and with which key. See [Problems], and docs/http.md
// for every case.
//
// Every status is stored, 500 included, except 429 and 503, which say "not done,
// try again": they give the key up. Inside a transaction, a status of 400 and up
// rolls the business writes back, and the answer is stored all the same.
// [Config.Settle] overrides both.
//
// # What is stored
//
// The status, the body and the fields that the handler has set. Never stored are
// Date, Set-Cookie, WWW-Authenticate, Authorization, fields that concern one
// connection (Connection and what it names, Keep-Alive, TE, Transfer-Encoding,
// Upgrade, Proxy-*), and [Config.DropHeaders]. Fields that handlers around the guard
// have set, and that the handler left alone, are theirs to set again: a request ID
// or the CORS fields stay fresh in a replay. Trailers are stored and replayed;
// answers of 1xx are passed on at once and not stored.
//
// Compress outside the guard: then the stored body is plain, and each repeat gets
// the coding that it asks for. Inside it the coded bytes are stored with their
// Content-Encoding, and given to every repeat.
//
// # When things go wrong
//
// A client that hangs up does not cancel the handler, whose answer is stored for
// the repeat; see [Config.CancelOnDisconnect]. A panic of the handler settles the key
// as an attempt without an outcome ([idem.Policy]; a transaction is rolled back) and
// goes on with its own value, [http.ErrAbortHandler] included. http.TimeoutHandler
// around a guard answers its 503 while the handler goes on, and a repeat gets the
// handler's answer; inside a guard, its 503 gives the key up although the handler it
// left may still be at work, so put it around.
//
// Without the store nothing runs: 503, unless [Config.FailOpen]. When the answer of
// a handler that has run cannot be stored, its caller gets it all the same, since the
// effect has happened; the key stays held until its lease ends.
package idemhttp
