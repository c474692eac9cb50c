-- What people write, a statement a line: none of it is refused.
SELECT -messages, +1, 7 // 2, 7 % 2, 2 ** 3, 2 ^ 3, 1 << 2, ~1, 5 & 3, 5 | 3, @(-3), 5! FROM tps_1s
SELECT topic LIKE 'd%', topic NOT ILIKE '%x', topic GLOB 'd*', topic SIMILAR TO 'd.*', topic ~ 'd' FROM tps_1s
SELECT topic LIKE 'a!%' ESCAPE '!', topic || '/x', topic ^@ 'd', topic[1:3], topic COLLATE NOCASE FROM tps_1s
SELECT CASE WHEN messages BETWEEN 1 AND 2 THEN 1 ELSE 2 END, coalesce(NULL, 1), ifnull(NULL, 2) FROM tps_1s
SELECT messages IS DISTINCT FROM 1, messages IN (1, 2), messages IS NOT NULL, NOT true FROM tps_1s
SELECT EXTRACT(hour FROM second), second AT TIME ZONE 'UTC', second - INTERVAL 1 HOUR, date_trunc('day', now()) FROM tps_1s
SELECT INTERVAL '3 days 2 hours', DATE '2026-01-01' + INTERVAL (1 + 1) MONTH, TIMESTAMP '2026-01-01 00:00:00'
SELECT current_date, current_timestamp, localtimestamp, today(), make_date(2026, 1, 1), strftime(now(), '%Y')
SELECT substring(topic FROM 2 FOR 3), position('e' IN topic), trim(BOTH 'd' FROM topic), overlay(topic PLACING 'x' FROM 1) FROM tps_1s
SELECT {'a': 1, 'b': [1, 2]}.b[1], [x * 2 FOR x IN [1, 2, 3] IF x > 1], MAP {'k': 1}['k'], row(1, 2), (1, 2)
SELECT list_transform([1, 2], lambda x: x + 1), list_filter([1, 2], lambda x: x > 1), list_reduce([1, 2], lambda a, b: a + b)
SELECT '{"a": [1]}'::JSON -> 'a' ->> 0, json_extract('{}', '$.a'), try_cast('x' AS INT), 1::VARCHAR
SELECT count(*), count(DISTINCT topic), sum(messages) FILTER (WHERE messages > 1), string_agg(topic, ',' ORDER BY topic) FROM tps_1s
SELECT quantile_cont(messages, 0.5), percentile_cont(0.9) WITHIN GROUP (ORDER BY messages), mode(topic), arg_max(topic, bytes) FROM tps_1s
SELECT topic, grouping(topic), sum(bytes) FROM tps_1s GROUP BY ROLLUP (topic) ORDER BY ALL
SELECT topic, lag(messages) OVER w, row_number() OVER w, rank() OVER w, sum(bytes) OVER (ORDER BY second RANGE INTERVAL 1 MINUTE PRECEDING) FROM tps_1s WINDOW w AS (PARTITION BY topic ORDER BY second)
SELECT * FROM tps_1s QUALIFY row_number() OVER (PARTITION BY topic ORDER BY second DESC) = 1
PIVOT tps_1s ON topic IN ('devices') USING sum(messages)
UNPIVOT (SELECT messages, bytes FROM tps_1s) ON messages, bytes
SELECT COLUMNS('mess.*') + 1, * EXCLUDE (topic) REPLACE (bytes + 1 AS bytes) FROM tps_1s
SELECT min(COLUMNS(*)) FROM tps_1s
SUMMARIZE tps_1s
DESCRIBE tps_1s
SHOW TABLES
FROM tps_1s SELECT topic USING SAMPLE 1 ROWS
SELECT * FROM tps_1s a ASOF JOIN tps_1s b ON a.topic = b.topic AND a.second >= b.second
SELECT unnest([1, 2]), unnest({'a': 1}), generate_subscripts([1, 2], 1)
SELECT * FROM range(3) t(i), unnest([1]) u(x), generate_series(1, 2) g(j), json_each('{"a": 1}') j
SELECT (SELECT max(messages) FROM tps_1s), EXISTS (FROM tps_1s), 1 = ANY (SELECT 1), [1, 2] && [2], list_contains([1], 1)
VALUES (1, 'a'), (2, 'b')
SELECT format('{} {}', 1, 'a'), printf('%d', 1), format_bytes(1000), regexp_replace('a', 'a', 'b'), md5('a'), hash(1), nullif(1, 1), if(true, 1, 2), greatest(1, 2)
SELECT time_bucket(INTERVAL 5 MINUTE, second), epoch(second), to_timestamp(0), date_diff('second', second, now()), dayname(second) FROM tps_1s
