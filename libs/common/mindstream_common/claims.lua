#!lua name=mindstream_claims_v2
-- Who was first, answered for a whole batch in one atomic step. See claims.py for the reasons.
--
-- KEYS[1] is "{namespace}": the only declared key. All others begin with it, so its hash tag puts them on one node:
--   {namespace}:c:<hash>           a claim: its owner, or "\0", length of the signature (1 byte), signature, owner
--   {namespace}:b:<band>           the hashes (16 bytes each, at most MOST) of the kept documents that have this band
--   {namespace}:a:<batch>:<hash>   the answers to a batch, kept for ARGV[ttl] seconds
--   {namespace}:s:<scope>          hash of what an unsettled scope took: "a<batch>:<hash>" = "", and "c<hash>" = owner,
--                                  or "\0", length of the bands (1 byte), bands, owner
--   {namespace}:n                  what the namespace is, in words (written by claims.py)

-- ARGV: scope, name of the answers, ttl, threshold (Jaccard index), bands per document, then per document its owner and
-- its record: 16 bytes of hash and, if it is to be compared, 8 bytes per band and the signature (see signatures.py).
-- An answer is "" (kept), "e" and the owner that has the hash, or "n", the similarity in 1/10000 (5 digits), the owner.
local FIRST, HASH, BAND, MOST = 6, 16, 8, 4
local BITS, SHORT, LONG = 1024, 132, 196

local DIFFER = { [0] = 0 } -- [256 * one + other]: in how many bits two bytes differ
for one = 0, 255 do
  for other = 0, 255 do
    local halves = 128 * (one - one % 2) + (other - other % 2) / 2 -- no library is there while this one is loaded
    DIFFER[256 * one + other] = DIFFER[halves] + (one + other) % 2
  end
end

local function pack(blob, owner)
  return blob == "" and owner or "\0" .. string.char(#blob) .. blob .. owner
end

-- blob, owner
local function unpack_(value)
  if string.byte(value) ~= 0 then
    return "", value
  end
  local n = string.byte(value, 2)
  return string.sub(value, 3, 2 + n), string.sub(value, 3 + n)
end

local function size_and_level(signature)
  local a, b, c, d = string.byte(signature, 1, 4)
  local size, level, reach = a + 256 * b + 65536 * c + 16777216 * d, 0, BITS
  while reach < size do
    level, reach = level + 1, 2 * reach
  end
  return size, level
end

local function differ(one, other, from, to)
  local x, y, n = { string.byte(one, from, to) }, { string.byte(other, from, to) }, 0
  for i = 1, #x do
    n = n + DIFFER[256 * x[i] + y[i]]
  end
  return n
end

-- The half-size sketch of the shorter document against the folded sketch of the one that is a level higher.
local function differ_folded(low, high)
  local x, left, right = { string.byte(low, 133, 196) }, { string.byte(high, 5, 68) }, { string.byte(high, 69, 132) }
  local n = 0
  for i = 1, 64 do
    n = n + DIFFER[256 * x[i] + bit.bxor(left[i], right[i])]
  end
  return n
end

-- The estimated Jaccard index of two signatures, or 0: the arithmetic of signatures.py.
local function similarity(one, other)
  local n, p = size_and_level(one)
  local m, q = size_and_level(other)
  local bits, x = BITS, 0
  if p == q then
    x = differ(one, other, 5, 132)
  else
    local low, high = one, other
    if p > q then
      low, high = other, one
    end
    if math.abs(p - q) > 1 or #low ~= LONG then
      return 0
    end
    bits, x = BITS / 2, differ_folded(low, high)
  end
  if 2 * x >= bits then
    return 0
  end
  local alone, total = -bits / 2 * math.log(1 - 2 * x / bits), (n + m) / 2 ^ math.max(p, q)
  return math.min(math.max(0, (total - alone) / (total + alone)), math.min(n, m) / math.max(n, m))
end

local function band_keys(namespace, bands)
  local names = {}
  for i = 1, #bands, BAND do
    names[#names + 1] = namespace .. ":b:" .. string.sub(bands, i, i + BAND - 1)
  end
  return names
end

-- The answer that names a kept document of another owner that is similar, or nil.
local function find(namespace, owner, signature, held, threshold)
  local seen = {}
  for _, hashes in ipairs(held) do
    for i = 1, #hashes, HASH do
      local hash = string.sub(hashes, i, i + HASH - 1)
      local value = not seen[hash] and redis.call("GET", namespace .. ":c:" .. hash)
      seen[hash] = true
      if value then
        local other, holder = unpack_(value)
        if holder ~= owner and other ~= "" then
          local index = similarity(signature, other)
          if index >= threshold then
            return string.format("n%05d%s", index * 10000, holder)
          end
        end
      end
    end
  end
end

local function keep(namespace, scope, owner, hash, bands, signature, names, held)
  local writes = { namespace .. ":c:" .. hash, pack(signature, owner) }
  for i, name in ipairs(names) do
    if #held[i] < MOST * HASH then
      writes[#writes + 1] = name
      writes[#writes + 1] = held[i] .. hash
    end
  end
  redis.call("MSET", unpack(writes))
  redis.call("HSET", scope, "c" .. hash, pack(bands, owner))
end

local function answer(namespace, scope, owner, record, width, threshold)
  local hash, bands = string.sub(record, 1, HASH), string.sub(record, HASH + 1, HASH + width)
  local value = redis.call("GET", namespace .. ":c:" .. hash)
  if value then
    local _, holder = unpack_(value)
    return holder == owner and "" or "e" .. holder
  end
  if #record == HASH then
    keep(namespace, scope, owner, hash, "", "", {}, {})
    return ""
  end
  local signature, names = string.sub(record, HASH + width + 1), band_keys(namespace, bands)
  local held = redis.call("MGET", unpack(names))
  for i = 1, #names do
    held[i] = held[i] or ""
  end
  local similar = find(namespace, owner, signature, held, threshold)
  if not similar then
    keep(namespace, scope, owner, hash, bands, signature, names, held)
  end
  return similar or ""
end

-- What is wrong with the documents, or nil.
local function wrong(args, width, threshold)
  if not threshold or not width or width < 0 or width > 255 then
    return "threshold and bands must be numbers, at most 31 bands"
  end
  for i = FIRST, #args, 2 do
    local owner, rest = args[i], #(args[i + 1] or "") - HASH
    if owner == "" or string.byte(owner) == 0 then
      return "document " .. (i - FIRST) / 2 .. ": needs an owner that does not begin with a zero byte"
    end
    if rest ~= 0 and (width == 0 or (rest - width ~= SHORT and rest - width ~= LONG)) then
      return "document " .. (i - FIRST) / 2 .. ": needs a hash of 16 bytes, or one with bands and a signature"
    end
  end
end

local function claim(keys, args)
  local namespace, scope, answers = keys[1], keys[1] .. ":s:" .. args[1], keys[1] .. ":a:" .. args[2]
  local before = redis.call("GET", answers)
  if before then
    return cmsgpack.unpack(before)
  end
  local threshold, width = tonumber(args[4]), BAND * (tonumber(args[5]) or -1)
  local error = wrong(args, width, threshold) -- before the first write: a function that fails half-way is not undone
  if error then
    return redis.error_reply("ERR " .. error)
  end
  local out = {}
  for i = FIRST, #args, 2 do
    out[#out + 1] = answer(namespace, scope, args[i], args[i + 1], width, threshold)
  end
  redis.call("SET", answers, cmsgpack.pack(out), "EX", args[3])
  redis.call("HSET", scope, "a" .. args[2], "")
  return out
end

-- ARGV: scope. The scope's claims stay for good; it can no longer be released.
local function settle(keys, args)
  return redis.call("DEL", keys[1] .. ":s:" .. args[1])
end

local function leave_bands(namespace, hash, bands)
  for _, name in ipairs(band_keys(namespace, bands)) do
    local hashes, rest = redis.call("GET", name) or "", {}
    for i = 1, #hashes, HASH do
      local other = string.sub(hashes, i, i + HASH - 1)
      rest[#rest + 1] = other ~= hash and other or nil
    end
    if #rest == 0 then
      redis.call("DEL", name)
    else
      redis.call("SET", name, table.concat(rest))
    end
  end
end

-- ARGV: scope. Gives back what the scope took and still holds, and forgets its answers. Returns the claims given back.
local function release(keys, args)
  local namespace, scope = keys[1], keys[1] .. ":s:" .. args[1]
  local taken, given = redis.call("HGETALL", scope), 0
  for i = 1, #taken, 2 do
    local kind, name = string.sub(taken[i], 1, 1), string.sub(taken[i], 2)
    local key = namespace .. ":" .. kind .. ":" .. name
    if kind == "a" then
      redis.call("DEL", key)
    else
      local value, bands, owner = redis.call("GET", key), unpack_(taken[i + 1])
      local _, holder = unpack_(value or "\0\0")
      if holder == owner then
        given = given + redis.call("DEL", key)
        leave_bands(namespace, name, bands)
      end
    end
  end
  redis.call("DEL", scope)
  return given
end

redis.register_function("mindstream_claim_v2", claim)
redis.register_function("mindstream_settle_v2", settle)
redis.register_function("mindstream_release_v2", release)
