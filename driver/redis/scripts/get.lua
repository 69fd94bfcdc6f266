local stored = redis.call('GET', KEYS[1])
if stored == '' then return {tag, REFUSED, now, ''} end
return {tag, OK, now, stored or ''}
