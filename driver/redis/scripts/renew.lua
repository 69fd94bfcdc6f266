-- driver.Record.AfterRenew
local holder, lease = ARGV[3], tonumber(ARGV[4])
if not held_by(holder, IN_FLIGHT) then return reply(NOT_HOLDER) end
r.lease = now + lease
save()
return reply(OK)
