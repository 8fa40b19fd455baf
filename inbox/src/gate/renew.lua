-- Keep the place behind the gate, if it is still ours. KEYS[1] the key; ARGV[1] our token; ARGV[2] milliseconds.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
