package conformancetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idem-go/idem/driver"
)

var badKeys = []driver.Key{
	{Scope: "", ID: "id"},
	{Scope: "scope", ID: ""},
	{Scope: "scope", ID: "   "},
	{Scope: " ", ID: "id"},
	{Scope: strings.Repeat("s", driver.MaxScope+1), ID: "id"},
	{Scope: "scope", ID: strings.Repeat("i", driver.MaxID+1)},
	{Scope: "scope", ID: strings.Repeat("i", 2705)},  // beyond an index row of PostgreSQL
	{Scope: "scope", ID: strings.Repeat("i", 32769)}, // beyond a key of bbolt
	{Scope: "scope", ID: strings.Repeat("i", 1<<20)},
	{Scope: "scope", ID: "a\x00b"},
	{Scope: "scope", ID: "a\xffb"},
	{Scope: "scope", ID: "a\x7f"},
	{Scope: "scope", ID: "a\n"},
	{Scope: "sc\u00f6pe", ID: "id"},
}

// A badHolder spoils one parameter that all verbs of a holder share.
var badHolders = []struct {
	name  string
	spoil func(*driver.HolderParams)
}{
	{"a zero token", func(h *driver.HolderParams) { h.Token = driver.Token{} }},
	{"a zero fence", func(h *driver.HolderParams) { h.Fence = 0 }},
	{"a negative fence", func(h *driver.HolderParams) { h.Fence = -1 }},
	{"Now before 1970", func(h *driver.HolderParams) { h.Now = time.Unix(-1, 0) }},
	{"Now in 2050", func(h *driver.HolderParams) { h.Now = time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC) }},
}

// refusedParams checks that a call that failed did so for its parameters.
func refusedParams(what string, err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("%s: got error %v, want one that matches %v", what, err, want)
	}
	return nil
}

var paramsRules = []rule{
	// Field cases P20 and P21.
	{
		id:      "params/key",
		promise: "a key that is not valid is ErrInvalidKey from every verb",
		check: func(ctx context.Context, e *env) error {
			for _, k := range badKeys {
				h := driver.HolderParams{Key: k, Token: driver.NewToken(), Fence: 1, Now: t0}
				_, claimErr := e.d.Claim(ctx, e.claim(k, t0))
				_, getErr := e.d.Get(ctx, driver.GetParams{Key: k, Now: t0})
				calls := map[string]error{"Claim": claimErr, "Get": getErr, "Forget": e.d.Forget(ctx, driver.ForgetParams{HolderParams: h})}
				for _, v := range holderVerbs {
					calls[v.name] = v.call(ctx, e.d, h)
				}
				for verb, err := range calls {
					if err := refusedParams(fmt.Sprintf("%s of %.40q", verb, k), err, driver.ErrInvalidKey); err != nil {
						return err
					}
				}
			}
			return nil
		},
	},
	{
		id:      "params/claim",
		promise: "a claim with a parameter out of its limits is ErrInvalidParams, and claims nothing",
		check: func(ctx context.Context, e *env) error {
			for name, spoil := range map[string]func(*driver.ClaimParams){
				"a zero token":              func(p *driver.ClaimParams) { p.Token = driver.Token{} },
				"no operation":              func(p *driver.ClaimParams) { p.Operation = "" },
				"a long operation":          func(p *driver.ClaimParams) { p.Operation = strings.Repeat("o", driver.MaxOperation+1) },
				"a non-ASCII operation":     func(p *driver.ClaimParams) { p.Operation = "op\u00e9ration" },
				"no fingerprint":            func(p *driver.ClaimParams) { p.Fingerprint = nil },
				"a long fingerprint":        func(p *driver.ClaimParams) { p.Fingerprint = make([]byte, driver.MaxFingerprint+1) },
				"a long summary":            func(p *driver.ClaimParams) { p.Summary = strings.Repeat("s", driver.MaxSummary+1) },
				"a summary that is no text": func(p *driver.ClaimParams) { p.Summary = "a\xffb" },
				"a summary with NUL":        func(p *driver.ClaimParams) { p.Summary = "a\x00b" },
				"no lease":                  func(p *driver.ClaimParams) { p.Lease = 0 },
				"a negative lease":          func(p *driver.ClaimParams) { p.Lease = -time.Second },
				"a lease over retention":    func(p *driver.ClaimParams) { p.Lease = p.Retention + 1 },
				"retention too long":        func(p *driver.ClaimParams) { p.Retention = driver.MaxDuration + 1 },
				"Now in 2050":               func(p *driver.ClaimParams) { p.Now = time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC) },
				"Now before 1970":           func(p *driver.ClaimParams) { p.Now = time.Unix(-1, 0) },
			} {
				p := e.claim(e.key(), t0)
				spoil(&p)
				_, err := e.d.Claim(ctx, p)
				if err := refusedParams("Claim with "+name, err, driver.ErrInvalidParams); err != nil {
					return err
				}
				if err := e.stateIs(ctx, p.Key, t0, driver.StateAbsent); err != nil {
					return fmt.Errorf("after Claim with %s: %w", name, err)
				}
			}
			return nil
		},
	},
	{
		id:      "params/holder",
		promise: "a holder's verb with a parameter out of its limits is ErrInvalidParams, and changes nothing",
		check: func(ctx context.Context, e *env) error {
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			calls := map[string]error{}
			for _, bad := range badHolders {
				h := holder(p.Key, r, t0)
				bad.spoil(&h)
				for _, v := range holderVerbs {
					calls[v.name+" with "+bad.name] = v.call(ctx, e.d, h)
				}
				calls["Forget with "+bad.name] = e.d.Forget(ctx, driver.ForgetParams{HolderParams: h})
			}
			h := holder(p.Key, r, t0)
			calls["Renew without a lease"] = e.d.Renew(ctx, driver.RenewParams{HolderParams: h})
			calls["Renew with a lease too long"] = e.d.Renew(ctx, driver.RenewParams{HolderParams: h, Lease: driver.MaxDuration + 1})
			calls["Release with a long note"] = e.d.Release(ctx, driver.ReleaseParams{HolderParams: h, Note: strings.Repeat("n", driver.MaxNote+1)})
			calls["Release with NUL in its note"] = e.d.Release(ctx, driver.ReleaseParams{HolderParams: h, Note: "\x00"})
			for name, spoil := range map[string]func(*driver.CompleteParams){
				"no retention":           func(p *driver.CompleteParams) { p.Retention = 0 },
				"retention too long":     func(p *driver.CompleteParams) { p.Retention = driver.MaxDuration + 1 },
				"a negative grace":       func(p *driver.CompleteParams) { p.Grace = -1 },
				"a long note":            func(p *driver.CompleteParams) { p.Note = strings.Repeat("n", driver.MaxNote+1) },
				"a note that is no text": func(p *driver.CompleteParams) { p.Note = "\xff" },
			} {
				c := complete(r, t0, nil)
				spoil(&c)
				calls["Complete with "+name] = e.d.Complete(ctx, c)
			}
			for what, err := range calls {
				if err := refusedParams(what, err, driver.ErrInvalidParams); err != nil {
					return err
				}
			}
			after, err := e.get(ctx, p.Key, t0)
			if err != nil {
				return err
			}
			return unchanged(after, r)
		},
	},
	{
		id:      "params/limits",
		promise: "Get, Purge and List refuse what is out of their limits",
		check: func(ctx context.Context, e *env) error {
			late := time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)
			_, err := e.d.Get(ctx, driver.GetParams{Key: e.key(), Now: late})
			if err := refusedParams("Get with Now in 2050", err, driver.ErrInvalidParams); err != nil {
				return err
			}
			for _, p := range []driver.PurgeParams{{Limit: 0}, {Limit: -1}, {Limit: driver.MaxPurge + 1}, {Limit: 1, Now: late}} {
				_, err := e.d.Purge(ctx, p)
				if err := refusedParams(fmt.Sprintf("Purge with limit %d, now %v", p.Limit, p.Now), err, driver.ErrInvalidParams); err != nil {
					return err
				}
			}
			lister, ok := e.d.(driver.Lister)
			if !ok {
				return nil
			}
			for _, p := range []driver.ListParams{
				{State: driver.StateUnknown, Limit: 0}, {State: driver.StateUnknown, Limit: driver.MaxList + 1},
				{State: driver.StateAbsent, Limit: 1}, {State: driver.StateReleased, Limit: 1}, {State: 99, Limit: 1},
				{State: driver.StateUnknown, Limit: 1, Now: late},
			} {
				_, _, err := lister.List(ctx, p)
				if err := refusedParams(fmt.Sprintf("List with %+v", p), err, driver.ErrInvalidParams); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "params/error-is-discreet",
		promise: "the error about a key does not contain the key",
		check: func(ctx context.Context, e *env) error {
			secret := "account-4711"
			for _, k := range []driver.Key{{Scope: secret + "\n", ID: "id"}, {Scope: "scope", ID: secret + "\x00"}} {
				_, claimErr := e.d.Claim(ctx, e.claim(k, t0))
				_, getErr := e.d.Get(ctx, driver.GetParams{Key: k})
				if i := slices.IndexFunc([]error{claimErr, getErr}, func(err error) bool {
					return err == nil || strings.Contains(err.Error(), secret)
				}); i >= 0 {
					return fmt.Errorf("%s: got error %v, want one without the key", [...]string{"Claim", "Get"}[i], []error{claimErr, getErr}[i])
				}
			}
			return nil
		},
	},
}
