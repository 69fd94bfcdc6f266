local IN_FLIGHT, COMPLETE, RELEASED = 1, 2, 3 -- stored
local ABSENT, UNKNOWN, EXPIRED = 0, 4, 5      -- what time makes of them
local HOLD, RESULT = 1, 2                     -- bits of flags

-- The mark tells a record from other data whatever its version is. After it comes
-- the encoding of driver.Record.AppendBinary, version 1, and the result last.
local MARK, VERSION = 'idem', 1
local LAYOUT = '>c4BBBc16c16I8I4I8I8I8I8I8I4c0I4c0I4c0I4c0I4c0I4c0'

-- The result is left where it is: a record with one is answered as stored, or
-- rewritten without it.
local function decode(s)
  local r = {}
  local flags, ends
  r.mark, r.version, r.state, flags, r.hash, r.token, r.fence, r.attempt,
    r.created, r.lease, r.completed, r.retain, r.grace,
    r.scope, r.id, r.operation, r.summary, r.note, r.fingerprint, ends = struct.unpack(LAYOUT, s)
  r.hold = flags % 2 == HOLD
  r.has_result = flags >= RESULT
  r.sound = r.mark == MARK and r.version == VERSION and flags < 4 and r.state >= IN_FLIGHT and r.state <= RELEASED
    and (r.has_result or ends == #s + 1)
  return r
end

local function encode(r, result)
  local flags = (r.hold and HOLD or 0) + (result and RESULT or 0)
  return struct.pack(LAYOUT, MARK, VERSION, r.state, flags, r.hash, r.token, r.fence, r.attempt,
    r.created, r.lease, r.completed, r.retain, r.grace,
    #r.scope, r.scope, #r.id, r.id, #r.operation, r.operation,
    #r.summary, r.summary, #r.note, r.note, #r.fingerprint, r.fingerprint) .. (result or '')
end

-- r is nil when there is no record. What is not a record of this key, or was
-- written by a newer version, is never changed; the caller looks at its first
-- bytes and says which it is.
local stored = redis.call('GET', KEYS[1])
local r
if stored then
  local ok, decoded = pcall(decode, stored)
  if not ok or not decoded.sound or decoded.hash ~= string.sub(tag, 1, 16) then
    return reply(REFUSED, string.sub(stored, 1, 4096))
  end
  r = decoded
end

-- driver.Record.StateAt
local function state()
  if not r or r.state == RELEASED then return ABSENT end
  if r.state == IN_FLIGHT then
    if now < r.lease then return IN_FLIGHT end
    if r.hold or now < r.retain then return UNKNOWN end
    return ABSENT
  end
  if now < r.retain then return COMPLETE end
  if now < r.grace then return EXPIRED end
  return ABSENT
end

-- The holder is compared as bytes, token and fence, so that no fence is rounded.
local function held_by(holder, in_state)
  return r and r.state == in_state and string.sub(stored, 24, 47) == holder
end

-- When nothing of the record is left to keep: driver.Record.AfterPurge with remove.
local function removed_at()
  if r.state == COMPLETE then return r.grace end
  if r.state == RELEASED then return r.retain end
  if r.hold then return nil end
  return math.max(r.lease, r.retain)
end

-- The lease is a field and never the key's TTL: a record outlives its lease. The
-- TTL is set by the command that writes the record, so no crash can part them.
-- It lasts a minute longer than the record is wanted, so that a command sent
-- again after a lost reply still finds what the first one did.
local SPARE_MS = 60000
local function save(result)
  local bytes = encode(r, result)
  local at = removed_at()
  if at then
    local ms = math.max(0, math.ceil((at - now) / 1000)) + SPARE_MS
    redis.call('SET', KEYS[1], bytes, 'PX', string.format('%.0f', ms))
  else
    redis.call('SET', KEYS[1], bytes)
  end
  return bytes
end
