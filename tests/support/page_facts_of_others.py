"""Rows of pages that begin with HoldMQ or are for who changes it: as `page_facts` says."""

from __future__ import annotations

from typing import Final

from page_facts_of_operators import EXAMPLE, NAME, OF_MQTT, PROGRAM, SWITCH

OTHER_PAGES: Final[dict[str, list[tuple[str, str]]]] = {
    "concepts": [
        ("with offsets 0, 1, 2, …", EXAMPLE),
        ("{} for each message, never", "storage.log.core.entries:ENTRY_SIZE"),
    ],
    "coordination": [
        *(
            (f"| `coordination.{name}` | {{}} |", f"coordination.{name}")
            for name in ("ttl_s", "renew_s", "timeout_s", "margin_s")
        ),
        ("Version 3.5.6 or newer", "tests/holdmq/cli/test_own_etcd.py: older ones are refused"),
        ("3.5.13 or newer", PROGRAM),
        ("etcd 3.6.16; with 3.5.35", "requirements/etcd/go.mod; the other one by hand"),
        ("Kubernetes 1.36", PROGRAM),
    ],
    "development": [
        ("Debian 12 or newer", PROGRAM),
        ("Python {} or newer", "pyproject.toml"),
        ("helm 3 and 4,", PROGRAM),
        ("Go {} or newer", "requirements/etcd/go.mod"),
        ("Python from {} and", "pyproject.toml"),
    ],
    "differences": [
        ("MQTT 3.1, 3.1.1 and 5 at", OF_MQTT),
        ("growing moves 1/n", "arithmetic"),
        ("| {} delay levels, timer wheel since 5.0 |", "holdmq.wire.move_headers:DELAY_LEVELS_MS"),
        ("timer wheel since 5.0", PROGRAM),
        ("1 GB each", PROGRAM),
    ],
    "failures": [
        (
            "unready after {}, killed after {};",
            "gateway.parent.supervisor:SILENT_UNREADY_S, gateway.parent.supervisor:SILENT_KILL_S",
        ),
        ("next in rank after {};", "holdmq.client.route:REROUTE_S"),
        ("{} MB remaining length", "tests/faults/test_hostile_bytes.py"),
        ("or after {}; what", "broker.queue_lease_s"),
        ("refused with {}, whatever", "tests/holdmq/service/test_admin.py"),
        ("cut off after {}, and", "holdmq.service.admin:ADMIN_REQUEST_S"),
        ("exit code {}. Shown", "tests/integration/test_stats.py"),
    ],
    "loadtest": [
        ("(127.0.0.1:1883)", NAME),
        ("exit code {} when everything that was wanted", "holdmq.service.process:EXIT_OK"),
        ("was done, {} when something failed", "holdmq.service.process:EXIT_FAILED"),
        ("with its reason), {} when", "holdmq.service.process:EXIT_USAGE"),
        ("More than {} waiting", "loadtest.device:OWED_MAX"),
        ("1 µs to {}, {} significant", "= loadtest.histogram:MAX_US / 1000000, loadtest/histogram.py"),
        ("histogram, 1 µs", "loadtest/histogram.py"),
        ("addresses 127.0.1.x", NAME),
        ("from {} connections on", "loadtest.source_address:PER_ADDRESS_MAX"),
        ("some 28,000 ports", "of the kernel"),
        ("up to {} GiB, and", "loadtest/bench/replica_reads.py"),
        ("200,000 at a limit of 20,000", EXAMPLE),
        ("one worker, {} readers", "loadtest/bench/slow_subscriber.py"),
        ("with 1 if", "tests/loadtest: a benchmark's exit code"),
        ("with 1 when", "tests/loadtest: a benchmark's exit code"),
        ("ratio is above {} or", "loadtest/bench/noisy_neighbour.py"),
        ("one worker; {} clients with passwords", "loadtest/bench/storm.py"),
        ("At {} it needs", "loadtest/bench/storm.py"),
        ("connects {} clients to one", "loadtest/bench/drain.py"),
        ("messages of {} devices", "loadtest/bench/freshness.py"),
    ],
    "quotas": [
        ("return code 3)", "what clients of MQTT 3 are told"),
        ("(expiry 0)", OF_MQTT),
        ("which is every {}.", "broker.register_interval_s"),
        ("Over {} it is kept within a tenth", "tests/integration/test_quotas.py"),
        ("what one read ({}) or", "gateway.edge.connection:PACED_READ_BYTES"),
        ("are looked at every {}, and", "broker.quotas.kept:LOOK_S"),
        ("comes within {}.", "broker.quotas.kept:LOOK_S"),
        ("end with exit code {}, and", "tests/integration/test_quotas_two_brokers.py"),
        ("(a mean of {})", "broker.quotas.core.rates:MEAN_OVER_S"),
    ],
    "cluster": [
        ("(`broker.register_interval_s`, {})", "broker.register_interval_s"),
        ("beginning at offset 0", "the first offset"),
        (
            "remembered for {}, the last {} of them",
            "broker.joining.core.marks:KEEP_MS, broker.joining.core.marks:MARKS_MAX",
        ),
        ("`holdmq_broker_is_keeper` is 0", SWITCH),
        ("and the exit code is {}; say it again", "tests/faults/test_broker_lost.py"),
        ("with session present 0.", SWITCH),
    ],
}
