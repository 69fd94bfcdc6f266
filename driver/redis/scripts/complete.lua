-- driver.Record.AfterComplete
if held and state == COMPLETE then return {tag, OK, now, ''} end
if not held or state ~= IN_FLIGHT then return {tag, NOT_HOLDER, now, ''} end
state = COMPLETE
completed = now
retain = now + ARGV[4]
grace = now + ARGV[5]
if ARGV[6] == '' then
  texts = string.sub(stored, TEXTS_AT, ends - 1)
else
  note = ARGV[6]
end
if ARGV[7] == '1' then result = ARGV[8] end
