package idemhttp

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// The codes of refusals. They are stable.
const (
	CodeKeyMissing         = "idempotency_key_missing"
	CodeKeyInvalid         = "idempotency_key_invalid"
	CodeScopeRefused       = "idempotency_scope_refused"
	CodeScopeInvalid       = "idempotency_scope_invalid"
	CodeRequestTooLarge    = "request_too_large"
	CodeRequestIncomplete  = "request_incomplete"
	CodeNoFingerprint      = "request_without_fingerprint"
	CodeFingerprintInvalid = "idempotency_fingerprint_invalid"
	CodeInFlight           = "idempotency_key_in_flight"
	CodeConflict           = "idempotency_key_conflict"
	CodeUnknown            = "operation_unknown"
	CodeExpired            = "idempotency_key_expired"
	CodeNotStored          = "response_not_stored"
	CodeUnreadable         = "response_unreadable"
	CodeFailed             = "operation_failed"
	CodeUnavailable        = "idempotency_store_unavailable"
	CodeRolledBack         = "operation_rolled_back"
	CodeUnconfirmed        = "operation_unconfirmed"
	CodeInterrupted        = "request_interrupted"
	CodeStreaming          = "streaming_refused"
	CodeNested             = "idempotency_key_nested"
)

// Problem is a refusal: a problem document of RFC 9457 with a code and two booleans.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Code is stable, for programs to decide on.
	Code string `json:"code"`
	// RetrySameKey says that the same request with the same key can get another
	// answer, and does no harm.
	RetrySameKey bool `json:"retry_same_key"`
	// RetryNewKey says that a request with a new key cannot repeat what this key has
	// done or may be doing.
	RetryNewKey bool `json:"retry_new_key"`
	// StoredRequest is set for [CodeConflict].
	StoredRequest *StoredRequest `json:"stored_request,omitempty"`
	// Reference is the URL from [Config.Reference], for answers of 202.
	Reference string `json:"reference,omitempty"`

	// RetryAfter is sent as the field Retry-After; 0 is not sent.
	RetryAfter time.Duration `json:"-"`
	// Applied is sent as the field Preference-Applied (RFC 7240); empty is not sent.
	Applied string `json:"-"`
	// Err is the cause, where there is one. It is not sent.
	Err error `json:"-"`
}

// typeBase is where the types of problems are explained.
const typeBase = "https://github.com/idem-go/idem/blob/main/docs/http.md#"

// problems is the table of refusals; docs/http.md shows it.
var problems = []Problem{
	{Status: 400, Code: CodeKeyMissing, RetryNewKey: true, Title: "Idempotency key is missing",
		Detail: "This endpoint requires an idempotency key."},
	{Status: 400, Code: CodeKeyInvalid, RetryNewKey: true, Title: "Idempotency key is invalid",
		Detail: "A key is 1 to 255 bytes of printable ASCII, bare or as an RFC 8941 string, once."},
	{Status: 401, Code: CodeScopeRefused, RetrySameKey: true, Title: "Principal is not known",
		Detail: "Whose idempotency key this is could not be established."},
	{Status: 500, Code: CodeScopeInvalid, RetrySameKey: true, Title: "Principal cannot be used",
		Detail: "The scope that the server chose for the key is empty or not printable ASCII. Nothing was done."},
	{Status: 413, Code: CodeRequestTooLarge, Title: "Request is too large",
		Detail: "The body is larger than a guarded request may be. Nothing was done."},
	{Status: 400, Code: CodeRequestIncomplete, RetrySameKey: true, Title: "Request is incomplete",
		Detail: "The body ended before it was complete. Nothing was done."},
	{Status: 400, Code: CodeNoFingerprint, Title: "Request cannot be compared",
		Detail: "The body is not what this endpoint compares repeats by. Nothing was done."},
	{Status: 500, Code: CodeFingerprintInvalid, RetrySameKey: true, Title: "Fingerprint cannot be used",
		Detail: "The fingerprint that the server made of the request is empty or too long. Nothing was done."},
	{Status: 409, Code: CodeInFlight, RetrySameKey: true, Title: "Request is in progress",
		Detail: "A request with this key is being worked on. Retry later with the same key."},
	{Status: 422, Code: CodeConflict, RetryNewKey: true, Title: "Idempotency key was used for another request",
		Detail: "A key belongs to one request. Use a new key for a new request."},
	{Status: 409, Code: CodeUnknown, Title: "Outcome is unknown",
		Detail: "An earlier attempt ended without an answer. Do not retry with any key until it has been looked into."},
	{Status: 410, Code: CodeExpired, Title: "Answer has expired",
		Detail: "The request was answered, and its answer is no longer kept."},
	{Status: 409, Code: CodeNotStored, Title: "Answer was not stored",
		Detail: "The request was answered once, with an answer too large to be kept."},
	{Status: 500, Code: CodeUnreadable, Title: "Stored answer cannot be read",
		Detail: "The request was answered, and the stored answer cannot be read."},
	{Status: 409, Code: CodeFailed, Title: "Operation has failed",
		Detail: "The operation ended with an error."},
	{Status: 503, Code: CodeUnavailable, RetrySameKey: true, Title: "Store of idempotency keys is unavailable", RetryAfter: time.Second,
		Detail: "Nothing was done. Retry with the same key."},
	{Status: 503, Code: CodeRolledBack, RetrySameKey: true, Title: "Operation was rolled back", RetryAfter: time.Second,
		Detail: "Everything was rolled back for a passing reason. Retry with the same key."},
	{Status: 503, Code: CodeUnconfirmed, RetrySameKey: true, Title: "Outcome is not confirmed", RetryAfter: time.Second,
		Detail: "The operation may have been done. Retry with the same key to learn its outcome."},
	{Status: 503, Code: CodeInterrupted, RetrySameKey: true, Title: "Request was interrupted", RetryAfter: time.Second,
		Detail: "The request ended before it had an answer. Retry with the same key."},
	{Status: 500, Code: CodeStreaming, Title: "Endpoint cannot stream",
		Detail: "The handler wanted to take the connection over, which a guarded handler cannot."},
	{Status: 500, Code: CodeNested, Title: "Idempotency key is in use by its own request",
		Detail: "The handler of this key sent a request that would wait for it."},
}

// Problems returns the refusals that a guard knows, with the status, title and
// detail of each. A refusal may differ in its detail; one in flight also in its
// status, 202.
func Problems() []Problem {
	all := slices.Clone(problems)
	for i := range all {
		all[i].Type = typeBase + all[i].Code
	}
	return all
}

func problem(code string) Problem {
	for _, p := range problems {
		if p.Code == code {
			p.Type = typeBase + code
			return p
		}
	}
	panic("idemhttp: no problem " + code)
}

// WriteProblem sends a refusal as application/problem+json, with Cache-Control:
// no-store and, where they are set, Retry-After, Preference-Applied and, for 202,
// Location.
func WriteProblem(w http.ResponseWriter, _ *http.Request, p Problem) {
	body, err := json.Marshal(p)
	if err != nil { // it holds nothing that cannot be encoded
		body = []byte("{}")
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", retryAfter(p.RetryAfter))
	}
	if p.Applied != "" {
		h.Set("Preference-Applied", p.Applied)
	}
	if p.Reference != "" {
		h.Set("Location", p.Reference)
	}
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n')) // an error means that the client has gone
}
