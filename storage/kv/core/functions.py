"""The functions that a key-value server runs for a shard: each is atomic, and all that write compare the
term.

`LIBRARY` is loaded with FUNCTION LOAD REPLACE; its name carries the version, so that brokers of two
releases do not replace each other's. Integers travel as decimal strings: Lua's numbers end at 2^53, which
positions do not reach. Errors begin with a word that `storage.kv.server` knows: FENCED, GAP.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "holdmq1"

LIBRARY: Final = (
    f"#!lua name={VERSION}\n"
    r"""
local function now_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function fenced(key, term)
    local held = redis.call('HGET', key, 'term')
    if held ~= term then
        return redis.error_reply('FENCED the shard is in term ' .. tostring(held) .. ', not ' .. term)
    end
end

-- A row of a table, its place in the order, and the table's size: DELETE_ROW or PUT_ROW, rows, order, key,
-- place, topic, sizes, value.
local function change_row(word, rows, order, key, place, topic, sizes, value)
    local before = redis.call('HSTRLEN', rows, key)
    local had = before > 0 and 1 or 0
    local bytes = had * (before + #key)
    if word == 'PUT_ROW' then
        redis.call('HSET', rows, key, value)
        if had == 0 then redis.call('ZADD', order, 0, place) end
        redis.call('HINCRBY', sizes, topic .. '/rows', 1 - had)
        redis.call('HINCRBY', sizes, topic .. '/bytes', #value + #key - bytes)
    elseif had == 1 then
        redis.call('HDEL', rows, key)
        redis.call('ZREM', order, place)
        redis.call('HINCRBY', sizes, topic .. '/rows', -1)
        redis.call('HINCRBY', sizes, topic .. '/bytes', -bytes)
    end
end

local function run_commands(keys, args, at)
    while at <= #args do
        local count = tonumber(args[at])
        if args[at + 1] == 'PUT_ROW' or args[at + 1] == 'DELETE_ROW' then
            change_row(unpack(args, at + 1, at + count))
        else
            redis.call(unpack(args, at + 1, at + count))
        end
        at = at + count + 1
    end
end

-- KEYS state; ARGV owner, ttl ms, run id, is forced ('1'), store id, format, is at home ('1': this broker has
-- the shard's name, and whoever has taken it over gives it back). {1, state...}, {0, owner, ms left}, or
-- {-1, format} of a shard that is newer than who asks: nothing is changed.
local function own(keys, args)
    local held = redis.call('HMGET', keys[1], 'owner', 'lease_ms', 'term', 'store_id', 'format')
    if held[5] and tonumber(held[5]) > tonumber(args[6]) then return {-1, held[5]} end
    local now = now_ms()
    if held[1] and held[1] ~= args[1] and tonumber(held[2] or '0') > now and args[4] ~= '1' then
        if args[7] == '1' then redis.call('HSET', keys[1], 'wanted', args[1]) end
        return {0, held[1], tonumber(held[2]) - now}
    end
    if not held[4] then
        redis.call('HSET', keys[1], 'store_id', args[5], 'format', args[6], 'end', '0', 'first', '0',
            'store_ms', '0', 'run_id', args[3], 'lost', '0')
    end
    -- By the clock, too: no term comes twice, even if a failover took back what made the last one.
    local term = string.format('%.0f', math.max(tonumber(held[3] or '0') + 1, now))
    redis.call('HSET', keys[1], 'owner', args[1], 'lease_ms', tostring(now + tonumber(args[2])), 'term', term)
    redis.call('HDEL', keys[1], 'wanted')
    return {1, unpack(redis.call('HGETALL', keys[1]))}
end

-- Counts what the servers lost. Losses within an hour of each other are one event: lost_lately.
local function add_lost(key, lost)
    local now = now_ms()
    local before = tonumber(redis.call('HGET', key, 'lost_ms') or '0')
    if now - before > 3600000 then redis.call('HSET', key, 'lost_lately', '0') end
    redis.call('HINCRBY', key, 'lost_lately', lost)
    redis.call('HSET', key, 'lost_ms', tostring(now))
    return redis.call('HINCRBY', key, 'lost', lost)
end

-- KEYS state; ARGV term, ttl ms. {end, who wants the shard back, records lost, those of the last event, and
-- the ms since it, by the server's clock}.
local function renew(keys, args)
    local refusal = fenced(keys[1], args[1])
    if refusal then return refusal end
    redis.call('HSET', keys[1], 'lease_ms', tostring(now_ms() + tonumber(args[2])))
    local held = redis.call('HMGET', keys[1], 'end', 'wanted', 'lost', 'lost_lately', 'lost_ms')
    local lost_ms = tonumber(held[5] or '0')
    return {held[1], held[2], held[3] or '0', held[4] or '0', string.format('%.0f', now_ms() - lost_ms)}
end

-- KEYS state; ARGV term. The shard has no owner from now on.
local function release(keys, args)
    local refusal = fenced(keys[1], args[1])
    if refusal then return refusal end
    redis.call('HSET', keys[1], 'owner', '', 'lease_ms', tostring(now_ms()))
    return 'OK'
end

-- KEYS state; ARGV grace ms. How many ms the shard has been without an owner (one that was given up: less a
-- grace for its broker to come back); negative: it has one.
local function free_for(keys, args)
    local held = redis.call('HMGET', keys[1], 'owner', 'lease_ms')
    if not held[2] then return -1 end
    local grace = 0
    if held[1] == '' then grace = tonumber(args[1]) end
    return now_ms() - tonumber(held[2]) - grace
end

-- KEYS state; ARGV term. A write that changes nothing, for a WAIT behind it; where the log ends.
local function touch(keys, args)
    local refusal = fenced(keys[1], args[1])
    if refusal then return refusal end
    redis.call('HSET', keys[1], 'term', args[1])
    return redis.call('HGET', keys[1], 'end')
end

-- KEYS state, epochs; ARGV term, epochs, lost, run id. Begins a log epoch.
local function rise(keys, args)
    local refusal = fenced(keys[1], args[1])
    if refusal then return refusal end
    redis.call('SET', keys[2], args[2])
    if args[3] ~= '0' then add_lost(keys[1], args[3]) end
    redis.call('HSET', keys[1], 'run_id', args[4])
    return 'OK'
end

-- KEYS state; ARGV lost. Adds what a former owner knows to be lost: of any term, as it changes no record.
local function report(keys, args)
    return add_lost(keys[1], args[1])
end

-- KEYS state, log, ends, queue...; ARGV term, end expected, end after, store ms, records, count of runs,
-- (queue, offset behind the run, place) per run, then commands, each with the count of its words.
local function append(keys, args)
    local held = redis.call('HMGET', keys[1], 'term', 'end')
    if held[1] ~= args[1] then
        return redis.error_reply('FENCED the shard is in term ' .. tostring(held[1]) .. ', not ' .. args[1])
    end
    if held[2] ~= args[2] then
        return redis.error_reply('GAP the log ends at ' .. tostring(held[2]) .. ', not at ' .. args[2])
    end
    redis.call('XADD', keys[2], '0-' .. args[3], 'r', args[5], 't', args[4])
    local runs = tonumber(args[6])
    local at = 7
    for run = 1, runs do
        redis.call('XADD', keys[3 + run], '0-' .. args[at + 1], 'p', args[at + 2])
        redis.call('HSET', keys[3], args[at], args[at + 1])
        at = at + 3
    end
    run_commands(keys, args, at)
    redis.call('HSET', keys[1], 'end', args[3], 'store_ms', args[4])
    return 'OK'
end

-- KEYS state, ...; ARGV term, then commands as in append.
local function change(keys, args)
    local refusal = fenced(keys[1], args[1])
    if refusal then return refusal end
    run_commands(keys, args, 2)
    return 'OK'
end

local function batch_at(log, position)
    local found = redis.call('XRANGE', log, '(0-' .. string.format('%.0f', position), '+', 'COUNT', 1)
    if #found == 0 then return nil end
    local stop = tonumber(string.sub(found[1][1], 3))
    local records = found[1][2][2]
    return stop - #records, stop, records, tonumber(found[1][2][4])
end

-- KEYS log, queue; ARGV offset, end offset, bytes, count. Runs from the one that holds the offset on:
-- {offset behind it, records in it, position, bytes, ...}; position -1: the log no longer has it.
local function read_queue(keys, args)
    local found = {}
    local room, count = tonumber(args[3]), tonumber(args[4])
    local at, stop = tonumber(args[1]), tonumber(args[2])
    while at < stop and room > 0 and count > 0 do
        local entries = redis.call('XRANGE', keys[2], '0-' .. string.format('%.0f', at + 1), '+', 'COUNT', 64)
        if #entries == 0 then break end
        for _, entry in ipairs(entries) do
            local following = tonumber(string.sub(entry[1], 3))
            local position, _, size, records = struct.unpack('>I8I8I4I4', entry[2][2])
            local begin, _, bytes = batch_at(keys[1], position)
            if not begin or begin > position then
                table.insert(found, following) table.insert(found, records)
                table.insert(found, -1) table.insert(found, '')
            else
                table.insert(found, following) table.insert(found, records)
                table.insert(found, position)
                if begin == position and size == #bytes then
                    table.insert(found, bytes)
                else
                    table.insert(found, string.sub(bytes, position - begin + 1, position - begin + size))
                end
            end
            room = room - size
            count = count - records
            at = following
            if at >= stop or room <= 0 or count <= 0 then return found end
        end
    end
    return found
end

-- KEYS log; ARGV position, end, bytes. Batches from the one that holds the position on: {position, records,
-- ...}.
local function read_log(keys, args)
    local found = {}
    local at, stop, room = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
    while at < stop and room > 0 do
        local begin, behind, records = batch_at(keys[1], at)
        if not begin or behind > stop then break end
        table.insert(found, begin) table.insert(found, records)
        room = room - #records
        at = behind
    end
    return found
end

-- KEYS log; ARGV first, end, store ms. The first position whose batch is stored then or later; the end if
-- none is.
local function position_at(keys, args)
    local low, high, wanted = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
    while low < high do
        local middle = math.floor((low + high) / 2)
        local begin, stop, _, ms = batch_at(keys[1], middle)
        if not begin or begin >= high then
            high = middle
        elseif ms < wanted then
            low = stop
        elseif begin <= low then
            return begin
        else
            high = begin
        end
    end
    return low
end

-- KEYS queue; ARGV first, end, field (1 position, 2 store ms), wanted. The first run that is there or behind:
-- {offset behind it, records, position}; empty if none is.
local function run_at(keys, args)
    local low, high = tonumber(args[1]), tonumber(args[2])
    local field, wanted = tonumber(args[3]), tonumber(args[4])
    local best = {}
    while low < high do
        local middle = math.floor((low + high) / 2)
        local after = '0-' .. string.format('%.0f', middle + 1)
        local entries = redis.call('XRANGE', keys[1], after, '+', 'COUNT', 1)
        if #entries == 0 then
            high = middle
        else
            local following = tonumber(string.sub(entries[1][1], 3))
            local position, ms, _, records = struct.unpack('>I8I8I4I4', entries[1][2][2])
            if (field == 1 and position or ms) < wanted then
                low = following
            else
                best = {following, records, position}
                high = math.min(middle, following - records)
            end
        end
    end
    return best
end

-- KEYS state, log; ARGV term, floor. Gives up batches that end at or below the floor; the first position
-- kept.
local function trim(keys, args)
    local refusal = fenced(keys[1], args[1])
    if refusal then return refusal end
    redis.call('XTRIM', keys[2], 'MINID', '0-' .. string.format('%.0f', tonumber(args[2]) + 1))
    local first = redis.call('HGET', keys[1], 'end')
    local found = redis.call('XRANGE', keys[2], '-', '+', 'COUNT', 1)
    if #found > 0 then
        first = string.format('%.0f', tonumber(string.sub(found[1][1], 3)) - #found[1][2][2])
    end
    redis.call('HSET', keys[1], 'first', first)
    return first
end

-- KEYS state, firsts, queue...; ARGV term, floor, a queue's name for each queue. Gives up runs below the
-- floor, in steps; for each queue its first kept offset, -1: nothing went.
local function trim_queues(keys, args)
    local refusal = fenced(keys[1], args[1])
    if refusal then return refusal end
    local floor = tonumber(args[2])
    local firsts = {}
    for i = 3, #keys do
        local first = -1
        local is_more = true
        while is_more do
            local entries = redis.call('XRANGE', keys[i], '-', '+', 'COUNT', 256)
            is_more = #entries == 256
            for _, entry in ipairs(entries) do
                local position, _, _, _ = struct.unpack('>I8I8I4I4', entry[2][2])
                if position >= floor then is_more = false break end
                first = tonumber(string.sub(entry[1], 3))
            end
            if first < 0 then break end
            redis.call('XTRIM', keys[i], 'MINID', '0-' .. string.format('%.0f', first + 1))
        end
        if first >= 0 then redis.call('HSET', keys[2], args[i], string.format('%.0f', first)) end
        table.insert(firsts, first)
    end
    return firsts
end

redis.register_function{function_name='holdmq1_own', callback=own, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_renew', callback=renew, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_touch', callback=touch, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_report', callback=report, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_release', callback=release, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_free_for', callback=free_for, flags={'no-writes'}}
redis.register_function{function_name='holdmq1_rise', callback=rise, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_append', callback=append}
redis.register_function{function_name='holdmq1_change', callback=change}
redis.register_function{function_name='holdmq1_free', callback=change, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_trim', callback=trim, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_trim_queues', callback=trim_queues, flags={'allow-oom'}}
redis.register_function{function_name='holdmq1_read_queue', callback=read_queue, flags={'no-writes'}}
redis.register_function{function_name='holdmq1_read_log', callback=read_log, flags={'no-writes'}}
redis.register_function{function_name='holdmq1_position_at', callback=position_at, flags={'no-writes'}}
redis.register_function{function_name='holdmq1_run_at', callback=run_at, flags={'no-writes'}}
"""
)
