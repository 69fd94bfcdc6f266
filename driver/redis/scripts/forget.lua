-- driver.Record.AfterForget
if not state then return {tag, OK, now, ''} end
if not held or state ~= COMPLETE then return {tag, NOT_HOLDER, now, ''} end
redis.call('DEL', KEYS[1])
return {tag, OK, now, ''}
