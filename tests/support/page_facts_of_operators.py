"""Rows of pages for who runs the product: as `page_facts` says."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "a version of another program"
OF_MQTT: Final = "a number of MQTT"
OF_HTTP: Final = "a number of HTTP"
EXAMPLE: Final = "an example"
NAME: Final = "a name or an address"
SWITCH: Final = "a gauge: 0 = no, or none; 1 = yes"

OPERATORS: Final[dict[str, list[tuple[str, str]]]] = {
    "README": [
        ("On a Debian 12 machine", PROGRAM),
        ("with Python {} and", "pyproject.toml"),
        ("none of version {} or", "spark_streaming.java:JAVA_VERSION_MIN"),
        ("any MQTT 3.1, 3.1.1 or 5.0 client", OF_MQTT),
        ("codes {}, {} (failed) and {} (used", "tests/holdmq/cli/test_app.py"),
        ("no Java | 244 [...] 1,363 MB |", ".ci/images holdmq holdmq-stats"),
        ("user {}, a root", "Containerfile"),
    ],
    "ARCHITECTURE": [
        ("or at {}, the batch", "holdmq.produce:PRODUCE_MAX_BYTES"),
        ("(at most {}). The first bad", "= 2 * storage.log.flusher:CHECKPOINT_BYTES"),
    ],
    "operating": [
        (
            "with exit code {} (",
            "tests/integration/test_settings.py::test_a_wrong_file_changes_nothing_and_is_told_by_key",
        ),
        ("(with {}, and without asking", "holdmq.service.process:EXIT_USAGE"),
        ("(bytes + some {})", "~ 333 - 200 + storage.log.core.entries:ENTRY_SIZE"),
        ("5,000 messages of 200 bytes a second", EXAMPLE),
        ("for three days are {} GB", "~ 5000 * (200 + 150) * 3 * 86400 * 1.25 / 1000000000"),
        ("`holdmq_store_writable` | {}, but", "helm/holdmq/files/rules.yaml::HoldMQStoreReadOnly"),
        ("`holdmq_store_disk_used_percent` | above {} |", "helm/holdmq/files/rules.yaml::HoldMQDiskFills"),
        ("| above 0 |", SWITCH),
        ("| 1 | nobody leads", SWITCH),
        ("| above 0 for minutes |", SWITCH),
        ("`holdmq_gateway_loop_lag_ms_max` | above {} |", "gateway.overload_lag_ms"),
    ],
    "troubleshooting": [
        (
            "without credentials {})",
            "connack:0x87",
        ),
        ("`holdmq_store_writable` is 0", SWITCH),
        ("`holdmq_store_recovery_cut_bytes` is not 0", SWITCH),
    ],
    "engines": [
        ("| a queue | {} bytes a message |", "storage.log.core.entries:ENTRY_SIZE"),
        ("an entry of {} bytes for each batch", "storage.kv.core.layout:RUN"),
        ("| {}, up to {} | the same", "storage.record_max_bytes, most:storage.record_max_bytes"),
        ("| a batch | a segment | {} |", "storage.kv.store:BATCH_BYTES_MAX"),
    ],
    "valkey": [
        ("Valkey or Redis (7 or newer)", PROGRAM),
        ("on 127.0.0.1 alone", NAME),
        ("in parts of {};", "storage.kv.importing:GROUP_BYTES"),
        (
            "gives away ({} to {};",
            "tests/helm/test_gateway.py::test_what_a_broker_takes_over_of_another_is_reached_at_ports_of_the_kernel",
        ),
        ("ends with {} when", "tests/holdmq/cli/test_kv.py::test_what_does_not_agree_is_found"),
    ],
    "replication": [
        ("`coordination.ttl_s` + {} after", "tests/support/shard_faults.py"),
        ("leads after {}, and", "coordination.ttl_s"),
        ("those {} higher", "holdmq.cli.up_replicas:PORT_STEP"),
        ("`min_in_sync` is {} unless", "tests/holdmq/cli/test_up_replicas.py"),
        ("of 3.5.6 or newer: Debian 13's package", "tests/holdmq/cli/test_own_etcd.py shows the first"),
        ("that of Debian 12 is not", PROGRAM),
        (
            "fails (exit code {})",
            "tests/holdmq/cli/test_replica.py::test_a_replica_that_does_not_answer_is_said_and_is_no_success",
        ),
        ("by their ids, from 1 on; 0 = the leader", "tests/broker/reading/core/test_far_reads.py shows it"),
        ("every {} a reader asks", "holdmq.client.replica_choice:STAY_S"),
        ("known there after {} at most", "holdmq.client.replica_choice:STAY_S"),
        ("copy alone for {};", "holdmq.client.replica_choice:REST_S"),
        ("asks for nothing for {}.", "broker.replication.fetched:KEEP_S"),
        ("| {} | 0.1.0 | records", "broker/replication/core/levels.py"),
        ("| 0.1.0 | records", "the release of level 1: tests/broker/replication/test_format_levels.py"),
        (
            ": {} to {} with the default times",
            (
                "= coordination.ttl_s - coordination.margin_s - coordination.renew_s, "
                "= coordination.ttl_s - coordination.margin_s"
            ),
        ),
        *(
            (words, f"helm/holdmq/files/rules.yaml::{alert}")
            for words, alert in (
                ("`lag_seconds > 10` for {} |", "HoldMQReplicaLag"),
                ("`missing > 0` for {} |", "HoldMQCopiesMissing"),
                ("`is_whole == 0` for {} |", "HoldMQCopyNotWhole"),
                ("all `is_leaderless`, for {} |", "HoldMQNoLeader"),
                ("`is_leaderless == 1` of one replica for {} |", "HoldMQCopyCutOff"),
            )
        ),
        ("for `switch_ms` and {} in which", "broker/replication/core/settings.py"),
        ("up to once in {} times `lag_ms`", "= 2 * broker.replication.core.leading:OFFER_PAUSES_MAX"),
        ("0 = it has run out", SWITCH),
        ("`holdmq_store_writable` is 0 at", SWITCH),
        ("- {} to {} replicas", "holdmq/config/replication.py, holdmq.config.replication:REPLICAS_MAX"),
    ],
    "kubernetes": [
        ("Kubernetes {} or newer", "helm/holdmq/Chart.yaml"),
        ("helm 3 or 4.", PROGRAM),
        ("user {}, a root", "helm/holdmq/templates/_pods.tpl"),
        ("(the default) | {} |", "values:mqtt.tcp.port"),
        ("`mqtt.tls.enabled` | {} |", "values:mqtt.tls.port"),
        ("`mqtt.websocket.enabled` | {} |", "values:mqtt.websocket.port"),
        ("connections / rate + {}.", "= 6 + 15"),
        (
            "({} connections, {} a second;",
            "values:gateway.connectionsMax, values:gateway.drain.ratePerSecond",
        ),
        (
            "`serverReference`), 18,000 clients, [...] served after | 39.1 s |",
            "`python -m loadtest.bench.drain`",
        ),
        ("| 100,000 idle connections |", EXAMPLE),
        ("| {} of gateways | 1.8 to {} each |", "~ 100000 * 5.5 * 1024, docs/performance.md"),
        ("| 1.8 to 5.5", "docs/performance.md"),
        ("| 100,000 over TLS", EXAMPLE),
        ("over TLS | {} of gateways | {} more each |", "~ 100000 * (5.5 + 16) * 1024, ~ 17 - 1.1"),
        ("that were busy | {} of gateways | {} more each |", "~ 100000 * (5.5 + 69) * 1024, ~ 72 - 3.7"),
        ("| 1,000 connects a second", EXAMPLE),
        ("| {} cores of gateways | {} each with ECDSA", "docs/listeners.md::measures what"),
        (
            "| 50,000 messages/s, QoS 1 | 1 core each",
            "docs/performance.md, the table of publishes, rounded",
        ),
        ("57,000 to 470,000/s on two", "docs/performance.md, rounded"),
        ("| 1,000 messages/s of 200 bytes, 72 h", EXAMPLE),
        ("| {} GB of volume", "~ 1000 * (200 + 150) * 72 * 3600 * 1.25 / 1000000000"),
        (
            "| {} messages/s counted | 0.5 core, 1.2 GiB of job | {} of a core, {}",
            "docs/spark.md::## Measured",
        ),
        ("| 0.5 core, 1.2 GiB of job |", "the figures beside it, rounded up"),
    ],
}
