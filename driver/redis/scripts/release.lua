-- driver.Record.AfterRelease
local holder, abandon, note = ARGV[3], ARGV[4] == '1', ARGV[5]
if held_by(holder, RELEASED) then return reply(OK) end
if not held_by(holder, IN_FLIGHT) then return reply(NOT_HOLDER) end
if note ~= '' then r.note = note end
if abandon then
  r.lease = math.min(r.lease, now)
else
  r.state = RELEASED
  if r.note == '' then r.retain = r.lease end
end
save()
return reply(OK)
