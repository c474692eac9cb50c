"""Rows of pages for who reads the counts: as `page_facts` says."""

from __future__ import annotations

from typing import Final

from page_facts_of_operators import PROGRAM, SWITCH

_FRESHNESS: Final = "`python -m loadtest.bench.freshness`"
_JOB: Final = "spark_streaming.job"
ANALYSTS: Final[dict[str, list[tuple[str, str]]]] = {
    "spark": [
        (
            "(protocol reader {}, writer {}: every",
            "tests/spark_streaming/job/test_delta_sink.py",
        ),
        ("in ms; {} when a device's clock", "spark_streaming/job/tps.py"),
        ("about {} after its second ended", "~ stats.trigger_interval_ms * 2 / 1000"),
        ("stay readable for {}:", "spark_streaming/job/delta_sink.py"),
        ("They are kept for {} (", "stats.tps_1m_retention_s"),
        ("bucket: {}, {}, {}, {}, {}, {}, … {} and {};", "holdmq/analytics/schemas.py"),
        ("; {} (2⁶³ − 1) holds", "holdmq.analytics.schemas:LATENCY_ABOVE_MS"),
        ("(2⁶³ − 1)", "the same number"),
        ("within a factor of 2 to 3", "the ratios of the bounds"),
        ("stored; 0 = nothing waits", SWITCH),
        ("gives the {} longest backlogs", f"{_JOB}.backlog:ROWS_MAX"),
        ("±{} (one sigma)", "~ 100 * 1.04 / 64"),
        (
            "(lgK {}, at most {})",
            "holdmq.analytics.schemas:SKETCH_LG_K, tests/holdmq/analytics/test_sketches.py",
        ),
        ("with more than {} devices", f"{_JOB}.devices:TALKERS_TRACKED_MIN"),
        ("within {} of the batch", "tests/spark_streaming/job/test_devices.py"),
        ("ends with exit code {}: for", "tests/integration/test_stats.py"),
        ("waits up to {}, and", "spark_streaming.source.options:READ_TIMEOUT_DEFAULT_MS"),
        ("Every {} commits", f"{_JOB}.delta_sink:MAINTENANCE_BATCHES"),
        ("compacted (to {})", f"{_JOB}.delta_sink:FILE_TARGET_BYTES"),
        ("running batch; exit code {}.", "tests/integration/test_stats.py"),
        ("One sentence and exit code {};", "tests/integration/test_stats.py"),
        ("task for each {} records", "spark_streaming.source.plan:PARTITION_RECORDS_MIN"),
        ("its own page is on port 8080", "of Spark"),
        ("with exit code {}. What is submitted", "tests/integration/test_stats_cluster.py"),
        ("(2.5; its webhook", PROGRAM),
        ("at most {}; `*` is every", "spark_streaming.source.options:COLUMNS_TAGS_MAX"),
        ("one for each {} records, unless", "spark_streaming.source.plan:PARTITION_RECORDS_MIN"),
        ("ISO 8601", "of a time"),
        ("measures the whole way (1,000,000 [...] 0.77 µs |", "`python -m loadtest.bench.spark_source`"),
        ("`send_timeout_ms` ({})", "spark_streaming.source.options:SEND_TIMEOUT_DEFAULT_MS"),
        ("there are 200 unless", "of Spark"),
        ("`python -m loadtest.bench.freshness`: 5,000 [...] 1,060 MiB busy", _FRESHNESS),
    ],
    "console": [
        ("a phone of {} pixels", "tests/console/test_scripted_pages.py"),
        ("1.6.32 (MIT)", PROGRAM),
        ("the last 1, 5 or", "console/static/pages/overview.js, its buttons"),
        ("5 or {}, and", "console/static/pages/overview.js"),
        ("over for {}. Nothing", "console.live.core.window:SETTLED_AFTER_S"),
        ("Nothing for {} shows as 0.", "console.live.core.window:IDLE_AFTER_S"),
        ("shows as 0.", SWITCH),
        ("names the {} busiest", "console/static/chart.js"),
        ("cut at {}.", "console.management.messages:BODY_SHOWN_MAX"),
        ("`console.session_idle_s` ({})", "console.session_idle_s"),
        ("`console.session_max_s` ({})", "console.session_max_s"),
        ("gets {} `PASSWORD_NOT_CHOSEN`", "console/api/serving.py"),
        ("up to a minute: {}. How", "tests/console/api/test_sign_in.py"),
        ("is refused with {}, whatever", "tests/console/test_app.py"),
        ("are refused with {}. `console.origins`", "tests/console/test_walk.py"),
        ("(OpenAPI {})", "console/api/openapi.py"),
        ("are RFC 3339", "of a time"),
        ("since 1970", "of a time"),
        ("beyond ±2^53 and", "console.live.core.cells:EXACT_MAX"),
        ("more than {} digits", "console.live.core.cells:EXACT_DIGITS"),
        ("has no broker is {}, `CLUSTER_UNKNOWN`", "tests/integration/test_clusters.py"),
        ("At most {} are asked apart", "console.management.clusters_apart:CLUSTERS_MAX"),
        (
            "`seconds` is {} to {}, `top` {} to {} (",
            (
                "console/api/live.py, console.live.core.window:WINDOW_S, "
                "console/api/live.py, console.api.live:TOP_MAX"
            ),
        ),
        (
            (
                ": {} names the wrong parameter, or says what is wrong with a query, {} another origin, "
                "{} another host, {} a query's limit of time or memory, {} why the cluster"
            ),
            (
                "console/api/refusals.py, tests/console/api/test_analysis_api.py, tests/console/test_app.py, "
                "tests/console/api/test_analysis_api.py, tests/console/test_app.py"
            ),
        ),
        ("default: {} pages", "console.streams_max"),
        ("reached: {} with the key's name", "tests/console/test_app.py"),
        ("default: {} requests in hand", "console.requests_max"),
        ("reached: {}, Retry-After {}", "console/api/refusals.py"),
        (
            "default: {}, {} (second, topic) pairs",
            "console.live.core.window:WINDOW_S, console.live.core.window:CELLS_MAX",
        ),
        ("default: {} each (`console.sql_waiting_max`)", "console.sql_waiting_max"),
        ("default: {}; {} - reached: 422", "console.sql_seconds_max, console.sql_memory_bytes"),
        ("reached: {} - metric: `…_queries_total{outcome=", "tests/console/api/test_analysis_api.py"),
        ("default: {} rows, {} - reached", "console.sql_rows_max, console.sql_result_max_bytes"),
        ("default: 64 Ki characters; {} -", "console.api.endpoint:BODY_MAX"),
        ("64 Ki characters", "console.sql.questions:TEXT_MAX and console.sql.saved:TEXT_MAX"),
        ("reached: {}; {} -", "console/api/refusals.py, tests/console/api/test_analysis_api.py"),
        (
            "ten years, {} steps, {} topics by name",
            "console.sql.core.history:POINTS_MAX, console.sql.analysis:LINES_MAX",
        ),
        ("reached: {}; others", "tests/console/api/test_analysis_api.py"),
        ("default: {} (`console.saved_queries_max`)", "console.saved_queries_max"),
        ("reached: {} - metric: `holdmq_console_saved_queries`", "console/api/refusals.py"),
        ("default: {} - reached: its stream", "console.api.http:STREAM_STALL_S"),
        (
            "default: {}; {} - reached: the one",
            "console.identity.sessions:SESSIONS_MAX, console.identity.sessions:OF_ACCOUNT_MAX",
        ),
        (
            "default: {} - reached: {} - metric: `holdmq_console_sign",
            "console.identity.identity:CHECKS_MAX, console/api/refusals.py",
        ),
        (
            "default: {} each - reached: {} -",
            "console.identity.accounts:ACCOUNTS_MAX, console/api/refusals.py",
        ),
        ("two files of {} -", "console.identity.audit:FILE_MAX_BYTES"),
        ("reached: {} - metric: `holdmq_console_misdirected", "tests/console/test_app.py"),
        (
            "console_queries`: 50 [...] history of a year | 77 | 79 |",
            "`python -m loadtest.bench.console_queries`",
        ),
    ],
}
