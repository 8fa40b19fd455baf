-- The minutes between two times, in points of equal length: sums, the highest of lags and counts,
-- and the median of medians.
-- $1: since; $2: until; $3: seconds of a point. Index: history_pkey. Locking: none.
SELECT
  date_bin(make_interval(secs => $3::float8), h.at, $1::timestamptz) AS at,
  least(greatest(sum(h.stored), 0), 9223372036854775807)::bigint AS stored,
  percentile_disc(0.5) WITHIN GROUP (ORDER BY h.stored_median)::float8 AS stored_median,
  max(h.stored_p99)::float8 AS stored_p99,
  least(greatest(sum(h.sampled), 0), 9223372036854775807)::bigint AS sampled,
  least(greatest(sum(h.handled), 0), 9223372036854775807)::bigint AS handled,
  percentile_disc(0.5) WITHIN GROUP (ORDER BY h.handled_median)::float8 AS handled_median,
  max(h.handled_p99)::float8 AS handled_p99,
  max(h.lag_seconds)::float8 AS lag_seconds,
  max(h.backlog) AS backlog,
  max(h.parked) AS parked,
  max(h.dead) AS dead,
  max(h.delayed) AS delayed,
  max(h.failing) AS failing,
  max(h.dead_letters) AS dead_letters
FROM {schema}.history AS h
WHERE h.at >= $1::timestamptz AND h.at < $2::timestamptz
GROUP BY 1
ORDER BY 1
