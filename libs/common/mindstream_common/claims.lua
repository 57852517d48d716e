#!lua name=mindstream_claims_v1
-- Who was first, answered for a whole batch in one atomic step. See claims.py for the reasons.
--
-- KEYS[1] is "{namespace}": the only declared key. All others begin with it, so its hash tag puts them on one node:
--   {namespace}:c:<hash>           the owner of a claim, kept for ever
--   {namespace}:a:<batch>:<hash>   the answers to a batch, kept for ARGV[ttl] seconds
--   {namespace}:s:<scope>          hash of what an unsettled scope took: "c<hash>" = owner, "a<batch>:<hash>" = ""
-- Kept free for near duplicates: {namespace}:b:<band> (owners) and {namespace}:d:<owner> (signature).

-- ARGV: scope, name of the answers, ttl, bytes per signature, bands per document, equal bytes that mean "similar",
-- then per document its owner and its record: 16 bytes of hash, then the signature, then 8 bytes per band.
local FIRST = 7

local function claim(keys, args)
  local namespace, scope, answers = keys[1], keys[1] .. ":s:" .. args[1], keys[1] .. ":a:" .. args[2]
  local before = redis.call("GET", answers)
  if before then
    return cmsgpack.unpack(before)
  end
  if args[4] ~= "0" or args[5] ~= "0" or args[6] ~= "0" then
    return redis.error_reply("ERR signatures and bands need a later version of this library")
  end
  for i = FIRST, #args, 2 do -- before the first write: a function that fails half-way is not rolled back
    if args[i] == "" or #(args[i + 1] or "") ~= 16 then
      return redis.error_reply("ERR document " .. (i - FIRST) / 2 .. ": needs an owner and a hash of 16 bytes")
    end
  end
  local out = {}
  for i = FIRST, #args, 2 do
    local owner, hash = args[i], args[i + 1]
    local claimed = namespace .. ":c:" .. hash
    local holder = redis.call("GET", claimed)
    if not holder then
      redis.call("SET", claimed, owner)
      redis.call("HSET", scope, "c" .. hash, owner)
    end
    out[#out + 1] = (holder and holder ~= owner) and holder or ""
  end
  redis.call("SET", answers, cmsgpack.pack(out), "EX", args[3])
  redis.call("HSET", scope, "a" .. args[2], "")
  return out
end

-- ARGV: scope. The scope's claims stay for good; it can no longer be released.
local function settle(keys, args)
  return redis.call("DEL", keys[1] .. ":s:" .. args[1])
end

-- ARGV: scope. Gives back what the scope took and still holds, and forgets its answers. Returns the claims given back.
local function release(keys, args)
  local scope = keys[1] .. ":s:" .. args[1]
  local taken, given = redis.call("HGETALL", scope), 0
  for i = 1, #taken, 2 do
    local kind, name = string.sub(taken[i], 1, 1), string.sub(taken[i], 2)
    local key = keys[1] .. ":" .. kind .. ":" .. name
    if kind == "a" then
      redis.call("DEL", key)
    elseif redis.call("GET", key) == taken[i + 1] then
      given = given + redis.call("DEL", key)
    end
  end
  redis.call("DEL", scope)
  return given
end

redis.register_function("mindstream_claim_v1", claim)
redis.register_function("mindstream_settle_v1", settle)
redis.register_function("mindstream_release_v1", release)
