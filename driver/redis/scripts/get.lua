local stored = redis.call('GET', KEYS[1])
if stored == '' then return reply(REFUSED) end
return reply(OK, stored or '')
