-- How many effects are committed. No parameters; reads the whole table.
SELECT count(*) FROM effect
