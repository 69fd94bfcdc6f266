-- Every script: KEYS[1] is the record's key, ARGV[1] the tag of the call, ARGV[2]
-- the instant to judge by in microseconds, 0 for the server's clock.
-- The tag is the key's hash and eight random bytes. It stands first in every
-- reply, so that a reply meant for another command cannot be taken for this one's:
-- {tag, status, now, record}.
--
-- The server does nothing else while a script runs, and half of what a small one
-- takes is the making of its functions and tables. So these have none: a script is
-- the parts that scripts.go names, one after the other, over shared variables.
local OK, NOT_HOLDER, REFUSED = 1, 2, 3

-- A double holds every whole number up to 2^53 exactly, and as microseconds that
-- is the year 2255; Redis converts it to an integer reply without rounding.
local tag, now = ARGV[1], tonumber(ARGV[2])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
