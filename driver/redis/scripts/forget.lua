-- driver.Record.AfterForget
if not r then return reply(OK) end
if not held_by(ARGV[3], COMPLETE) then return reply(NOT_HOLDER) end
redis.call('DEL', KEYS[1])
return reply(OK)
