package redis

import (
	"errors"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
)

func TestJudge(t *testing.T) {
	sound := map[string]string{"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction"}
	for _, tt := range []struct {
		name, value string
		sound       bool
	}{
		{"redis_version", "7.0.15", true},
		{"redis_version", "8.2.1", true},
		{"redis_version", "10.0.0", true},
		{"redis_version", "6.2.14", false},
		{"redis_version", "", false},
		{"role", "slave", false},
		{"maxmemory_policy", "volatile-lru", false},
		{"maxmemory_policy", "", false},
	} {
		info := make(map[string]string)
		for name, value := range sound {
			info[name] = value
		}
		info[tt.name] = tt.value
		err := new(Driver).judge(info)
		if tt.sound && err != nil || !tt.sound && !errors.Is(err, driver.ErrUnsafeConfig) {
			t.Errorf("%s %q: got %v", tt.name, tt.value, err)
		}
	}
}

// The fixed fields of an encoded record are where the scripts, and Purge, look for them.
func TestFixedBytes(t *testing.T) {
	b := driver.Record{State: driver.StateComplete}.AppendBinary(nil, driver.KeyHash{})
	if got := len(mark) + len(b); got != fixedBytes+emptyTexts {
		t.Errorf("a record without texts takes %d bytes, want %d", got, fixedBytes+emptyTexts)
	}
}

func TestParseRefuses(t *testing.T) {
	tag := newTag(driver.KeyHash{1})
	good := []any{tag, int64(1), int64(1), ""}
	if _, err := parse(good, tag); err != nil {
		t.Fatalf("a good reply: %v", err)
	}
	for _, v := range []any{
		nil, int64(1), "OK", []any{}, good[:3],
		[]any{newTag(driver.KeyHash{1}), int64(1), int64(1), ""},
		[]any{tag, "1", int64(1), ""},
		[]any{tag, int64(1), "1", ""},
		[]any{tag, int64(1), int64(1), nil},
	} {
		if _, err := parse(v, tag); !errors.Is(err, driver.ErrForeignRecord) {
			t.Errorf("parse(%v): got %v, want ErrForeignRecord", v, err)
		}
	}
}

func TestLaps(t *testing.T) {
	nodes := []node{{name: "a"}, {name: "b"}, {name: "c"}}
	for _, tt := range []struct {
		from position
		want []position
	}{
		{position{}, []position{{"a", 0}, {"b", 0}, {"c", 0}}},
		{position{"b", 7}, []position{{"b", 7}, {"c", 0}, {"a", 0}, {"b", 0}}},
		{position{"gone", 7}, []position{{"a", 0}, {"b", 0}, {"c", 0}}},
	} {
		got := laps(nodes, tt.from)
		if len(got) != len(tt.want) {
			t.Fatalf("from %v: %d laps, want %d", tt.from, len(got), len(tt.want))
		}
		for i, l := range got {
			if (position{l.node.name, l.cursor}) != tt.want[i] {
				t.Errorf("from %v: lap %d is %s %d, want %v", tt.from, i, l.node.name, l.cursor, tt.want[i])
			}
		}
	}
}

func TestOfOneCommand(t *testing.T) {
	if ofOneCommand(goredis.ErrClosed) || ofOneCommand(nil) {
		t.Error("the end of a connection concerns every command")
	}
}
