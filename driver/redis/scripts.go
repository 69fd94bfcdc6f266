package redis

import (
	_ "embed"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/reply.lua
	replyLua string
	//go:embed scripts/record.lua
	recordLua string
	//go:embed scripts/held.lua
	heldLua string
	//go:embed scripts/save.lua
	saveLua string
	//go:embed scripts/claim.lua
	claimLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/complete.lua
	completeLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/forget.lua
	forgetLua string
	//go:embed scripts/get.lua
	getLua string
	//go:embed scripts/purge.lua
	purgeLua string
)

// evenWhenFull lets a script write beyond maxmemory, so that a claim that was
// granted can always be settled. A script with a shebang is refused as a whole by
// a replica: Get, which settles what is unknown, never answers from a stale one.
const evenWhenFull = "#!lua flags=allow-oom\n"

var (
	claimScript    = goredis.NewScript(replyLua + recordLua + claimLua + saveLua)
	renewScript    = goredis.NewScript(evenWhenFull + replyLua + recordLua + heldLua + renewLua + saveLua)
	completeScript = goredis.NewScript(evenWhenFull + replyLua + recordLua + heldLua + completeLua + saveLua)
	releaseScript  = goredis.NewScript(evenWhenFull + replyLua + recordLua + heldLua + releaseLua + saveLua)
	forgetScript   = goredis.NewScript(evenWhenFull + replyLua + recordLua + heldLua + forgetLua)
	purgeScript    = goredis.NewScript(evenWhenFull + replyLua + recordLua + purgeLua + saveLua)
	getScript      = goredis.NewScript(evenWhenFull + replyLua + getLua)
)
