-- driver.Record.AfterComplete
local holder, retention, until_absent = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local note, has_result, result = ARGV[6], ARGV[7] == '1', ARGV[8]
if held_by(holder, COMPLETE) then return reply(OK) end
if not held_by(holder, IN_FLIGHT) then return reply(NOT_HOLDER) end
r.state = COMPLETE
r.completed = now
r.retain = now + retention
r.grace = now + until_absent
if note ~= '' then r.note = note end
save(has_result and result or nil)
return reply(OK)
