local IN_FLIGHT, COMPLETE, RELEASED = 1, 2, 3 -- stored
local HOLD, RESULT = 1, 2                     -- bits of flags

-- The mark tells a record from other data whatever its version is. After it comes
-- the encoding of driver.Record.AppendBinary, version 1: fixed fields, texts, and
-- the result last.
local MARK, VERSION = 'idem', 1
local FIXED, TEXTS, TEXTS_AT = '>c4BBBc16c16I8I4I8I8I8I8I8', '>I4c0I4c0I4c0I4c0I4c0I4c0', 92
local FIXED_TEXTS = '>c4BBBc16c16I8I4I8I8I8I8I8I4c0I4c0I4c0I4c0I4c0I4c0'

-- state is nil when there is no record. What is not a record of this key, or was
-- written by a newer version, is never changed; the caller looks at its first
-- bytes and says which it is.
local stored = redis.call('GET', KEYS[1])
local ok, mark, version, state, flags, hash, token, fence, attempt, created, lease, completed, retain, grace,
  scope, id, operation, summary, note, fingerprint, ends
if stored then
  ok, mark, version, state, flags, hash, token, fence, attempt, created, lease, completed, retain, grace,
    scope, id, operation, summary, note, fingerprint, ends = pcall(struct.unpack, FIXED_TEXTS, stored)
  if not ok or mark ~= MARK or version ~= VERSION or hash ~= string.sub(tag, 1, 16)
    or flags > HOLD + RESULT or state < IN_FLIGHT or state > RELEASED
    or flags < RESULT and ends ~= #stored + 1 then
    return {tag, REFUSED, now, string.sub(stored, 1, 4096)}
  end
end
