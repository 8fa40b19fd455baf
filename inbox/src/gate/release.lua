-- Give the place behind the gate up, if it is still ours. KEYS[1] the key; ARGV[1] our token.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
