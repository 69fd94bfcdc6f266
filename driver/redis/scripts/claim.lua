-- driver.Record.AfterClaim. Without the flag allow-oom, and without a shebang:
-- when memory is full the SET of a new claim is refused, while a repeat of a
-- finished operation still gets its outcome.
local token, lease, retention = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local hold, resolve = ARGV[6] == '1', ARGV[7] == '1'
local operation, fingerprint, summary, scope, id = ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12]

local function grant()
  r.state = IN_FLIGHT
  r.token = token
  r.fence = math.max(r.fence + 1, now)
  r.attempt = r.attempt + 1
  r.lease = now + lease
  r.retain = now + retention
  return reply(OK, save())
end

local current = state()
if current == ABSENT then
  if r and r.state == RELEASED and r.token == token then
    return reply(OK, stored)
  end
  local note = ''
  if r and r.state == RELEASED and now < r.retain then note = r.note end
  r = {
    hash = string.sub(tag, 1, 16), scope = scope, id = id,
    operation = operation, fingerprint = fingerprint, summary = summary, note = note,
    fence = r and r.fence or 0, attempt = 0, hold = hold,
    created = now, completed = 0, grace = 0,
  }
  return grant()
end
if current == IN_FLIGHT or current == UNKNOWN then
  if r.token == token then
    if now + lease > r.lease then
      r.lease = now + lease
      return reply(OK, save())
    end
  elseif current == UNKNOWN and r.operation == operation and r.fingerprint == fingerprint
    and (resolve or not r.hold and not hold) then
    r.hold = r.hold or hold
    return grant()
  end
elseif current == EXPIRED and r.has_result then
  return reply(OK, encode(r))
end
return reply(OK, stored)
