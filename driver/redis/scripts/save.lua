-- Writes the record that the variables hold, and answers with it when the verb
-- has set answer. texts are scope to fingerprint as stored, nil when one of them
-- is another now; result is nil when there is none.
if not texts then
  texts = struct.pack(TEXTS, #scope, scope, #id, id, #operation, operation,
    #summary, summary, #note, note, #fingerprint, fingerprint)
end
local bytes = struct.pack(FIXED, MARK, VERSION, state, flags % 2 + (result and RESULT or 0), hash, token,
  fence, attempt, created, lease, completed, retain, grace) .. texts .. (result or '')

-- The lease is a field and never the key's TTL: a record outlives its lease. The
-- TTL is set by the command that writes the record, so no crash can part them.
-- It lasts a minute longer than the record is wanted, so that a command sent
-- again after a lost reply still finds what the first one did.
local SPARE_MS = 60000
if state == IN_FLIGHT and flags % 2 == HOLD then
  redis.call('SET', KEYS[1], bytes)
else
  -- driver.Record.AfterPurge with remove: when nothing of the record is left to keep
  local at = retain
  if state == COMPLETE then
    at = grace
  elseif state == IN_FLIGHT and lease > retain then
    at = lease
  end
  local ms = math.max(0, math.ceil((at - now) / 1000)) + SPARE_MS
  redis.call('SET', KEYS[1], bytes, 'PX', string.format('%.0f', ms))
end
return {tag, OK, now, answer and bytes or ''}
