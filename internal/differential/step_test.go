package differential

import (
	"time"

	"pgregory.net/rapid"

	"github.com/idem-go/idem/driver"
)

// t0 lies ahead of every clock, so that a store that drops records by its own clock
// keeps them while a test runs.
var t0 = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	keys      = 2
	lease     = time.Minute
	retention = time.Hour // of a claim
	keep      = 24 * time.Hour
	grace     = 48 * time.Hour
)

// verb is what a step does. The first is what a failing step shrinks to.
type verb string

const (
	claim       verb = "Claim"
	renew       verb = "Renew"
	complete    verb = "Complete"
	release     verb = "Release"
	abandon     verb = "Abandon"
	get         verb = "Get"
	forget      verb = "Forget"
	purge       verb = "Purge"
	list        verb = "List"
	inTx        verb = "BeginClaim"
	completeTx  verb = "BeginComplete"
	invalid     verb = "invalid params"
	cancelled   verb = "ended context"
	claimDouble verb = "Claim of an earlier token"
)

var verbs = []verb{
	claim, claim, claim, claimDouble, renew, complete, complete, release, abandon, get, forget, forget, purge, list,
	inTx, inTx, completeTx, invalid, cancelled,
}

// states are those that can be listed.
var states = []driver.State{driver.StateInFlight, driver.StateUnknown, driver.StateComplete, driver.StateExpired}

// ending is how a transaction ends.
type ending string

const (
	commit      ending = "commit"
	discard     ending = "discard"
	rollback    ending = "rollback"
	commitOther ending = "commit under another fence"
)

// step is one verb in words that need no store: which key, and which of those who
// have held it.
type step struct {
	Verb    verb
	Key     int
	Advance time.Duration // of the clock, before
	Holder  int           // 0 is the last one that was granted the key, 1 the one before
	Foreign string        // "token" or "fence": of somebody who never held the key
	Other   string        // "operation" or "fingerprint": of a claim
	Hold    bool
	Resolve bool
	Lease   int    // in units
	Result  string // "none" is none
	Grace   bool
	Note    string
	End     ending
	Limit   int
	State   driver.State // to list
	Spoil   int          // which parameter is invalid
}

var advances = []time.Duration{
	0, 0, 0, 0, time.Microsecond, time.Second, lease / 2, lease - time.Microsecond, lease, lease, 2 * lease, 3 * lease,
	retention, retention + lease, keep - time.Microsecond, keep, grace,
}

// some makes a few steps, that shrink to fewer and simpler ones. Rapid keeps slices of
// any length short: six elements or so.
var some = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
	one := func(name string, odds int, values ...string) string {
		if rapid.IntRange(0, odds-1).Draw(t, name+"?") < odds-1 {
			return ""
		}
		return rapid.SampledFrom(values).Draw(t, name)
	}
	return step{
		Verb:    rapid.SampledFrom(verbs).Draw(t, "verb"),
		Key:     rapid.IntRange(0, keys-1).Draw(t, "key"),
		Advance: rapid.SampledFrom(advances).Draw(t, "advance"),
		Holder:  max(0, rapid.IntRange(-3, 2).Draw(t, "holder")),
		Foreign: one("foreign", 8, "token", "fence"),
		Other:   one("other", 6, "operation", "fingerprint"),
		Hold:    one("hold", 3, "hold") != "",
		Resolve: one("resolve", 4, "resolve") != "",
		Lease:   rapid.IntRange(1, 3).Draw(t, "lease"),
		Result:  rapid.SampledFrom([]string{"none", "", "value", "\x00\xff\r\n"}).Draw(t, "result"),
		Grace:   rapid.Bool().Draw(t, "grace"),
		Note:    one("note", 4, "by hand", "π ≠ 3"),
		End:     rapid.SampledFrom([]ending{commit, commit, discard, rollback, commitOther}).Draw(t, "end"),
		Limit:   rapid.IntRange(1, 3).Draw(t, "limit"),
		State:   rapid.SampledFrom(states).Draw(t, "state"),
		Spoil:   rapid.IntRange(0, len(spoils)-1).Draw(t, "spoil"),
	}
}), 0, 20)

// spoils make a claim invalid.
var spoils = []func(*driver.ClaimParams){
	func(p *driver.ClaimParams) { p.Key.ID = "" },
	func(p *driver.ClaimParams) { p.Key.Scope = "\x00" },
	func(p *driver.ClaimParams) { p.Token = driver.Token{} },
	func(p *driver.ClaimParams) { p.Operation = "" },
	func(p *driver.ClaimParams) { p.Fingerprint = nil },
	func(p *driver.ClaimParams) { p.Summary = "\xff" },
	func(p *driver.ClaimParams) { p.Lease = 0 },
	func(p *driver.ClaimParams) { p.Retention = p.Lease - 1 },
	func(p *driver.ClaimParams) { p.Now = time.Unix(-1, 0) },
}
