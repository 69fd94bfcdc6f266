//go:build linux

package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// at is an instant of a history that is written by hand, in milliseconds.
func at(ms int) int64 { return int64(ms+1) * int64(time.Millisecond) }

// history is one key's events, written by hand.
type history []event

func (h history) call(ms int, id, group string, w way, p plan) history {
	return append(h, event{Kind: called, T: at(ms), ID: id, Group: group, Way: w, Plan: p})
}

func (h history) run(ms int, id string, attempt int, fence int64) history {
	return append(h, event{Kind: began, T: at(ms), ID: id, Attempt: attempt, Fence: fence})
}

func (h history) effect(ms int, id string) history {
	return append(h, event{Kind: effected, T: at(ms), ID: id})
}

func (h history) end(ms int, id string) history {
	return append(h, event{Kind: ended, T: at(ms), ID: id})
}

func (h history) answer(ms int, id string, c class, value string) history {
	return append(h, event{Kind: answered, T: at(ms), ID: id, Class: c, Value: value})
}

// A process dies after its effect, another one takes over when the lease has ended
// and completes, and a third hears of it.
func takeover() history {
	return history(nil).
		call(0, "a", "p/0", do, succeed).run(1, "a", 1, 10).effect(2, "a").
		call(10, "b", "q/0", do, succeed).answer(11, "b", inFlight, "").
		call(600, "c", "q/0", do, succeed).run(601, "c", 2, 20).effect(602, "c").end(603, "c").answer(604, "c", first, "Do/c").
		call(610, "d", "r/0", doTx, succeed).answer(611, "d", replayed, "Do/c")
}

func inTransaction() history {
	return history(nil).
		call(0, "a", "p/0", doTx, succeed).run(1, "a", 0, 0).end(2, "a").answer(9, "a", first, "DoTx/a").
		call(3, "b", "q/0", do, succeed).answer(4, "b", inFlight, "").
		call(20, "c", "q/0", doThenTx, succeed).answer(21, "c", replayed, "DoTx/a")
}

// A clock that jumps lets b take over before the fn of a has begun.
func overtaken() history {
	return history(nil).
		call(0, "a", "p/0", do, succeed).
		call(5, "b", "q/0", do, succeed).run(9, "b", 2, 20).effect(10, "b").
		run(11, "a", 1, 10).effect(12, "a").
		end(13, "b").answer(14, "b", first, "Do/b").
		end(15, "a").answer(16, "a", nothing, "")
}

// A holder renews its lease while as many others wait as a busy machine lets pile up.
func crowd() history {
	h := history(nil).call(0, "a", "p/0", do, succeed).run(1, "a", 1, 10).effect(600, "a")
	for i := range 60 {
		h = h.call(10+i, fmt.Sprintf("b%d", i), "q/0", do, succeed).answer(400+i, fmt.Sprintf("b%d", i), inFlight, "").
			call(100+i, fmt.Sprintf("c%d", i), "r/0", do, succeed).answer(650+i, fmt.Sprintf("c%d", i), replayed, "Do/a")
	}
	return h.end(601, "a").answer(610, "a", first, "Do/a")
}

func TestJudgeOfJumpingClocks(t *testing.T) {
	for lease, fine := range map[time.Duration]bool{0: true, 500 * time.Millisecond: false} {
		all := calls(overtaken())
		if wrong := judge(all, nil, lease); (len(wrong) == 0) != fine {
			t.Errorf("lease %v: the judge says %q\n%s", lease, wrong, story(all))
		}
	}
	all := calls(overtaken().call(20, "c", "r/0", do, succeed).run(21, "c", 3, 30).end(22, "c").answer(23, "c", nothing, ""))
	if wrong := judge(all, nil, 0); len(wrong) == 0 {
		t.Error("the judge lets an fn run after an outcome")
	}
}

func TestJudge(t *testing.T) {
	finalValue := "final/Do/a"
	for name, c := range map[string]struct {
		h    history
		rows []string
		want string // part of what is said; "" for nothing
	}{
		"takeover":                      {takeover(), nil, ""},
		"transaction":                   {inTransaction(), []string{"a"}, ""},
		"a crowd":                       {crowd(), nil, ""},
		"one of a crowd hears old news": {crowd().call(700, "d", "s/0", do, succeed).answer(701, "d", inFlight, ""), nil, "no order of the calls"},
		"final": {history(nil).call(0, "a", "p/0", do, endFinal).run(1, "a", 1, 10).effect(2, "a").end(3, "a").
			answer(4, "a", first, finalValue).call(5, "b", "q/0", do, succeed).answer(6, "b", replayed, finalValue), nil, ""},
		"an answer lost after it was recorded": {history(nil).call(0, "a", "p/0", do, succeed).run(1, "a", 1, 10).effect(2, "a").
			call(9, "b", "q/0", do, succeed).answer(10, "b", replayed, "Do/a"), nil, ""},
		"a follower hears old news": {history(nil).call(0, "a", "p/0", do, succeed).run(1, "a", 1, 10).effect(2, "a").end(3, "a").
			call(5, "b", "q/0", do, succeed).answer(6, "b", replayed, "Do/a").
			call(7, "c", "p/0", do, succeed).answer(8, "c", inFlight, "").answer(9, "a", first, "Do/a"), nil, ""},

		"a row without its outcome":  {takeover(), []string{"d"}, "business rows"},
		"an outcome without its row": {inTransaction(), nil, "business rows"},
		"a row twice":                {inTransaction(), []string{"a", "a"}, "business rows"},
		"another call's row":         {inTransaction(), []string{"b"}, "business rows"},
		"two recorded": {inTransaction().call(30, "e", "q/0", doTx, succeed).run(31, "e", 0, 0).end(32, "e").answer(33, "e", first, "DoTx/e"),
			[]string{"a"}, "2 calls recorded an outcome"},
		"two outcomes":            {takeover().call(620, "e", "r/0", do, succeed).answer(621, "e", replayed, "Do/a"), nil, "two outcomes"},
		"an outcome from nowhere": {history(nil).call(0, "a", "p/0", do, succeed).answer(1, "a", replayed, "Do/x"), nil, "no order of the calls"},
		"a replay before the outcome": {history(nil).call(0, "b", "q/0", do, succeed).answer(1, "b", replayed, "Do/a").
			call(2, "a", "p/0", do, succeed).run(3, "a", 1, 10).effect(4, "a").end(5, "a").answer(6, "a", first, "Do/a"), nil, "no order of the calls"},
		"in flight after the outcome": {takeover().call(620, "e", "r/0", do, succeed).answer(621, "e", inFlight, ""), nil, "no order of the calls"},
		"the outcome of one that was refused": {history(nil).call(0, "a", "p/0", do, succeed).run(1, "a", 1, 10).effect(2, "a").end(3, "a").
			answer(4, "a", nothing, "").call(5, "b", "q/0", do, succeed).answer(6, "b", replayed, "Do/a"), nil, "no order of the calls"},
		"stuck": {history(nil).call(0, "a", "p/0", do, succeed).run(1, "a", 1, 10), nil, "no outcome"},
		"two owners": {history(nil).call(0, "a", "p/0", do, succeed).run(1, "a", 1, 10).
			call(100, "b", "q/0", do, succeed).run(101, "b", 2, 20).effect(102, "b").end(103, "b").answer(104, "b", first, "Do/b"), nil, "had its lease"},
		"one fence twice": {takeover()[:3].call(600, "c", "q/0", do, succeed).run(601, "c", 2, 10).end(603, "c").answer(604, "c", first, "Do/c"),
			nil, "under one fence"},
		"an effect forgotten": {takeover()[:3].call(600, "c", "q/0", do, succeed).run(601, "c", 1, 20).end(603, "c").answer(604, "c", first, "Do/c"),
			nil, "as attempt 1 after the effect"},
		"fn after the outcome": {takeover().call(1300, "e", "r/0", do, fail).run(1301, "e", 3, 30).effect(1302, "e").end(1303, "e").answer(1304, "e", nothing, ""),
			nil, "after call c had recorded"},
		"fn twice in a call": {takeover().run(605, "c", 3, 30), nil, "ran 2 times"},
		"a refusal":          {takeover().call(620, "e", "r/0", do, succeed).answer(621, "e", illegal, ""), nil, "was answered"},
	} {
		t.Run(name, func(t *testing.T) {
			all := calls(c.h)
			got := strings.Join(judge(all, c.rows, 500*time.Millisecond), "; ")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("the judge says %q, want %q\n%s", got, c.want, story(all))
			}
		})
	}
}
