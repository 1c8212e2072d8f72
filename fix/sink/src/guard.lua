-- Runs a message's commands unless its mark says that they have run. The mark is a field of the hash KEYS[1], which is in
-- the slot of the keys: for each origin of messages the offset of the last one that ran here. Beside it may stand how many
-- commands of a message have run that must go on later (ORIGIN~), and what a message was refused for (ORIGIN!OFFSET).
-- ARGV: origin, offset, offset of the message before it in this slot (zeros: unknown), then for each command the number
-- of its words and the words.
local origin, offset = ARGV[1], ARGV[2]
local progress, refusal = origin .. '~', origin .. '!' .. offset
local kept = redis.call('HMGET', KEYS[1], origin, progress, refusal)
local mark = kept[1]

-- The word in front of an error that says nothing about the message: it passes, or nothing that goes on would help.
local function about_the_server(err)
    if string.find(err, 'non local key', 1, true) or string.find(err, 'rehashing', 1, true) then
        return 'TRYAGAIN'
    end
    -- Servers before 7.0 put the script's name in front of the error.
    local kind = string.match(err, '^%-?(%u+)') or string.match(err, ': %-(%u+)')
    for _, known in ipairs({'OOM', 'MISCONF', 'NOREPLICAS', 'READONLY', 'LOADING', 'CLUSTERDOWN', 'NOPERM', 'NOAUTH'}) do
        if kind == known then
            return kind
        end
    end
end

local function keep(field, value)
    local reply = redis.pcall('HSET', KEYS[1], field, value)
    return type(reply) == 'table' and reply.err or nil
end

if mark and mark >= offset then
    -- Told to the replicas again: whoever asks for them (WAIT) asks for this.
    local err = keep(origin, mark)
    if err then
        return redis.error_reply((about_the_server(err) or 'TRYAGAIN') .. ' ' .. err)
    end
    if kept[3] then
        return redis.error_reply(kept[3])
    end
    return 0
end
if string.find(ARGV[3], '[1-9]') and (not mark or mark < ARGV[3]) then
    return redis.error_reply('UNSLOWGAP a message before this one has not run yet')
end
local ran, bad = 0, nil
if kept[2] and string.sub(kept[2], 1, #offset) == offset then
    ran = tonumber(string.sub(kept[2], #offset + 2))
    bad = kept[3] or nil
end
local at, number = 4, 0
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    number = number + 1
    if number > ran then
        local reply = redis.pcall(unpack(ARGV, at + 1, at + words))
        if type(reply) == 'table' and reply.err then
            local kind = about_the_server(reply.err)
            if kind then
                -- What has run is not to run again.
                if number > 1 then
                    keep(progress, offset .. ' ' .. (number - 1))
                end
                return redis.error_reply(kind .. ' ' .. reply.err)
            end
            if not bad then
                bad = string.gsub(reply.err, '[\r\n]', ' ')
                keep(refusal, bad)
            end
            -- Nothing of it has run: its mark is not set.
            if number == 1 then
                return redis.error_reply(bad)
            end
        end
    end
    at = at + words + 1
end
local err = keep(origin, offset)
if err then
    return redis.error_reply((about_the_server(err) or 'TRYAGAIN') .. ' ' .. err)
end
if kept[2] then
    redis.call('HDEL', KEYS[1], progress)
end
if bad then
    return redis.error_reply(bad)
end
if kept[3] then
    redis.call('HDEL', KEYS[1], refusal)
end
return 1
