-- Runs a message's commands unless its mark says that they have run. The mark is a field of the hash KEYS[1], which is in
-- the slot of the keys: for each origin of messages the offset of the last one that ran here.
-- ARGV: origin, offset, offset of the message before it in this slot (zeros: unknown), then for each command the number
-- of its words and the words.
local mark = redis.call('HGET', KEYS[1], ARGV[1])
if mark and mark >= ARGV[2] then
    return 0
end
if string.find(ARGV[3], '[1-9]') and (not mark or mark < ARGV[3]) then
    return redis.error_reply('UNSLOWGAP a message before this one has not run yet')
end
local at = 4
local first = true
local bad = nil
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    local reply = redis.pcall(unpack(ARGV, at + 1, at + words))
    if type(reply) == 'table' and reply.err then
        -- Nothing has run yet, and this may pass: as if it had never been sent.
        -- Servers before 7.0 put the script's name in front of the error.
        local kind = string.match(reply.err, '^%-?(%u+)') or string.match(reply.err, ': %-(%u+)')
        if first and (kind == 'OOM' or kind == 'MISCONF' or kind == 'NOREPLICAS' or kind == 'READONLY' or kind == 'LOADING') then
            return redis.error_reply(kind .. ' ' .. reply.err)
        end
        bad = bad or reply
    end
    first = false
    at = at + words + 1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return bad or 1
