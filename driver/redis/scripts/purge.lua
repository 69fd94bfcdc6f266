-- driver.Record.AfterPurge. NOT_HOLDER says that the record was not due.
local at = r and removed_at()
if not at then return reply(NOT_HOLDER) end
if now >= at then
  redis.call('DEL', KEYS[1])
elseif r.state == COMPLETE and r.has_result and now >= r.retain then
  save()
else
  return reply(NOT_HOLDER)
end
return reply(OK)
