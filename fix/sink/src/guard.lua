-- Runs a message's commands unless its mark says that they have run. The mark is a field of the hash KEYS[1], which is in
-- the slot of the keys: for each origin of messages the offset of the last one that ran here. Beside it may stand how many
-- commands of a message have run that must go on later (ORIGIN~), and what a message was refused for (ORIGIN!OFFSET).
-- ARGV: origin, offset, offset of the message before it in this slot (zeros: unknown), then for each command the number
-- of its words (below zero: a module's command, whose errors may say anything, so they are checked) and the words.
-- Errors of these commands are answered behind UNSLOWREFUSED, or behind UNSLOWWAIT where they will pass: all other errors
-- of a call are the server's own words.
local origin, offset = ARGV[1], ARGV[2]
local progress, refusal = origin .. '~', origin .. '!' .. offset
local kept = redis.call('HMGET', KEYS[1], origin, progress, refusal)
local mark = kept[1]

-- The server's own words: before 7.0 the script's name and line stand in front of them, and a line break behind.
local function sentence(err)
    local said = string.sub(err, -2) == '\r\n' and string.sub(err, 1, -3) or err
    return string.match(said, '^@?user_script: ?%d+: ?(.*)$') or said
end

-- The word in front of an error that says nothing about the message: it passes, or retrying would not help.
local function about_the_server(err)
    local said = sentence(err)
    -- Arguments that an error repeats stand behind a quote; the name of a command is the mapping's own.
    if string.find(said, '^[%w ]*non local key') or string.find(said, '^[%w ]*rehashing')
        or string.find(said, "^[%w ]*Unable to execute command '[^' ]*' in script because undeclared keys") then
        return 'TRYAGAIN'
    end
    if string.find(said, '^[%w ]*while the cluster is down') then
        return 'CLUSTERDOWN'
    end
    -- Redis 6.2 and 7.0 leave the word away.
    if string.find(said, "^[%w ]*The user executing the script can't run") then
        return 'NOPERM'
    end
    local kind = string.match(said, '^%-?(%u+)')
    -- A key that the user may not write can come from the message.
    if kind == 'NOPERM' and string.find(said, 'No permissions to access a ', 1, true) then
        return nil
    end
    for _, known in ipairs({'OOM', 'MISCONF', 'NOREPLICAS', 'READONLY', 'LOADING', 'CLUSTERDOWN', 'NOPERM', 'NOAUTH'}) do
        if kind == known then
            return kind
        end
    end
end

local function wait(kind, err)
    return redis.error_reply('UNSLOWWAIT ' .. kind .. ' ' .. err)
end

local function refused(err)
    return redis.error_reply('UNSLOWREFUSED ' .. err)
end

local function keep(field, value)
    local reply = redis.pcall('HSET', KEYS[1], field, value)
    return type(reply) == 'table' and reply.err or nil
end

-- Whether an error of a module's command, which may say anything, is the server's refusal to run it. Servers refuse writes for
-- want of memory or replicas only until one of the script has run: if they refuse ours for the same reason, the command has
-- not run. A migrating key cannot be tested this way; for it the whole sentence must be the server's.
local tried = false
local function servers_own(kind, err, done)
    if kind == 'TRYAGAIN' then
        local said = string.gsub(sentence(err), '^ERR ', '')
        return said == 'Script attempted to access a non local key in a cluster node' or string.find(said,
            "^Unable to execute command '[^' ]*' in script because undeclared keys were accessed during rehashing of the slot$")
    end
    local why = keep(progress, offset .. ' ' .. done)
    tried = tried or not why
    return why and about_the_server(why) == kind
end

if mark and mark >= offset then
    -- Told to the replicas again: whoever asks for them (WAIT) asks for this.
    local err = keep(origin, mark)
    if err then
        return wait(about_the_server(err) or 'TRYAGAIN', err)
    end
    if kept[3] then
        return refused(kept[3])
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
    local believed = words > 0
    words = math.abs(words)
    number = number + 1
    if number > ran then
        local reply = redis.pcall(unpack(ARGV, at + 1, at + words))
        if type(reply) == 'table' and reply.err then
            local kind = about_the_server(reply.err)
            if kind and (believed or servers_own(kind, reply.err, number - 1)) then
                -- What has run is not to run again.
                if number > 1 then
                    keep(progress, offset .. ' ' .. (number - 1))
                end
                return wait(kind, reply.err)
            end
            if not bad then
                bad = string.gsub(reply.err, '[\r\n]', ' ')
                keep(refusal, bad)
            end
            -- Nothing of it has run: its mark is not set.
            if number == 1 then
                if tried then
                    redis.call('HDEL', KEYS[1], progress)
                end
                return refused(bad)
            end
        end
    end
    at = at + words + 1
end
local err = keep(origin, offset)
if err then
    return wait(about_the_server(err) or 'TRYAGAIN', err)
end
if kept[2] or tried then
    redis.call('HDEL', KEYS[1], progress)
end
if bad then
    return refused(bad)
end
if kept[3] then
    redis.call('HDEL', KEYS[1], refusal)
end
return 1
