-- Runs a message's commands unless its mark says that they have run. The mark is a field of the hash KEYS[1], which is in
-- the slot of the keys: for each origin of messages the offset of the last one that ran here. Beside it may stand, for
-- offsets, how many commands of a message have run (ORIGIN~), and what a message was refused for (ORIGIN!OFFSET).
-- ARGV: origin, offset, offset of the message before it in this slot (zeros: unknown), then for each command the number
-- of its words and the words.
local origin, offset = ARGV[1], ARGV[2]
local kept = redis.call('HMGET', KEYS[1], origin, origin .. '~')
local mark, ran = kept[1], 0
if mark and mark >= offset then
    -- Told to the replicas again: whoever asks for them (WAIT) asks for this.
    redis.call('HSET', KEYS[1], origin, mark)
    local why = redis.call('HGET', KEYS[1], origin .. '!' .. offset)
    if why then
        return redis.error_reply(why)
    end
    return 0
end
if string.find(ARGV[3], '[1-9]') and (not mark or mark < ARGV[3]) then
    return redis.error_reply('UNSLOWGAP a message before this one has not run yet')
end
if kept[2] and string.sub(kept[2], 1, #offset) == offset then
    ran = tonumber(string.sub(kept[2], #offset + 2))
end
local at, number, bad = 4, 0, nil
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    number = number + 1
    if number > ran then
        local reply = redis.pcall(unpack(ARGV, at + 1, at + words))
        if type(reply) == 'table' and reply.err then
            -- Servers before 7.0 put the script's name in front of the error.
            local kind = string.match(reply.err, '^%-?(%u+)') or string.match(reply.err, ': %-(%u+)')
            if string.find(reply.err, 'non local key', 1, true) or string.find(reply.err, 'rehashing', 1, true) then
                kind = 'TRYAGAIN'
            end
            if kind == 'OOM' or kind == 'MISCONF' or kind == 'NOREPLICAS' or kind == 'READONLY' or kind == 'LOADING' or kind == 'TRYAGAIN' then
                -- This passes. What has run is not to run again.
                if number > 1 then
                    redis.pcall('HSET', KEYS[1], origin .. '~', offset .. ' ' .. (number - 1))
                end
                return redis.error_reply(kind .. ' ' .. reply.err)
            end
            if not bad then
                bad = reply
                redis.call('HSET', KEYS[1], origin .. '!' .. offset, (string.gsub(bad.err, '[\r\n]', ' ')))
            end
            -- Nothing of it has run: its mark is not set.
            if number == 1 then
                return bad
            end
        end
    end
    at = at + words + 1
end
redis.call('HSET', KEYS[1], origin, offset)
if kept[2] then
    redis.call('HDEL', KEYS[1], origin .. '~')
end
return bad or 1
