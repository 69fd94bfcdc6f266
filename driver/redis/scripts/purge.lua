-- driver.Record.AfterPurge. NOT_HOLDER says that the record was not due.
local answer, texts, result
if not state or state == IN_FLIGHT and flags % 2 == HOLD then return {tag, NOT_HOLDER, now, ''} end
if state == COMPLETE and now < grace then
  if flags < RESULT or now < retain then return {tag, NOT_HOLDER, now, ''} end
else
  if now < retain or state == IN_FLIGHT and now < lease then return {tag, NOT_HOLDER, now, ''} end
  redis.call('DEL', KEYS[1])
  return {tag, OK, now, ''}
end
