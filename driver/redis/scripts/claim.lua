-- driver.Record.AfterClaim. Without the flag allow-oom, and without a shebang:
-- when memory is full the SET of a new claim is refused, while a repeat of a
-- finished operation still gets its outcome.
if state == COMPLETE and now < retain then return {tag, OK, now, stored} end

local new_token, resolve, new_flags, new_texts = ARGV[3], ARGV[6] == '1', tonumber(ARGV[7]), ARGV[8]
local answer, texts, result = true
local grant = true
if state == IN_FLIGHT and (now < lease or now < retain or flags % 2 == HOLD) then
  texts = string.sub(stored, TEXTS_AT, ends - 1)
  if token == new_token then
    if now + ARGV[4] <= lease then return {tag, OK, now, stored} end
    grant = false
  else
    local _, _, new_operation, _, _, new_fingerprint = struct.unpack(TEXTS, new_texts)
    if now < lease or operation ~= new_operation or fingerprint ~= new_fingerprint
      or not resolve and (flags % 2 == HOLD or new_flags == HOLD) then
      return {tag, OK, now, stored}
    end
    if new_flags == HOLD then flags = HOLD end
  end
elseif state == COMPLETE and now < grace then
  -- A tombstone, without the result that may still be there.
  return {tag, OK, now, struct.pack(FIXED, MARK, VERSION, state, flags % 2, hash, token,
    fence, attempt, created, lease, completed, retain, grace) .. string.sub(stored, TEXTS_AT, ends - 1)}
else
  if state == RELEASED and token == new_token then return {tag, OK, now, stored} end
  texts = new_texts
  if state == RELEASED and now < retain and note ~= '' then
    local _
    scope, id, operation, summary, _, fingerprint = struct.unpack(TEXTS, new_texts)
    texts = nil
  end
  hash, flags, fence, attempt = string.sub(tag, 1, 16), new_flags, fence or 0, 0
  created, completed, grace = now, 0, 0
end
lease = now + ARGV[4]
if grant then
  state, token, fence, attempt = IN_FLIGHT, new_token, math.max(fence + 1, now), attempt + 1
  retain = now + ARGV[5]
end
