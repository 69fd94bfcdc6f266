-- The holder is compared as bytes, token and fence, so that no fence is rounded.
local held = state and string.sub(stored, 24, 47) == ARGV[3]
local answer, texts, result
