-- driver.Record.AfterRelease
if held and state == RELEASED then return {tag, OK, now, ''} end
if not held or state ~= IN_FLIGHT then return {tag, NOT_HOLDER, now, ''} end
if ARGV[5] ~= '' then note = ARGV[5] end
if ARGV[4] == '1' then
  lease = math.min(lease, now)
else
  state = RELEASED
  if note == '' then retain = lease end
end
