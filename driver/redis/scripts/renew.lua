-- driver.Record.AfterRenew
if not held or state ~= IN_FLIGHT then return {tag, NOT_HOLDER, now, ''} end
lease = now + ARGV[4]
