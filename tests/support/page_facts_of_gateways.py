"""Rows of pages for who runs gateways: as `page_facts` says."""

from __future__ import annotations

from typing import Final

from page_facts_of_operators import EXAMPLE, NAME, OF_MQTT, PROGRAM

ANONYMOUS: Final = "connack:0x87"
"""What a client of MQTT 3 is told who gives no credentials: tests/gateway/session/test_session.py."""
LISTENERS: Final = "`python -m loadtest.bench.listeners`"
GATEWAYS: Final[dict[str, list[tuple[str, str]]]] = {
    "listeners": [
        ("At most {} listeners", "holdmq.config.listeners:LISTENERS_MAX"),
        ("TLS 1.2 and 1.3.", "tests/gateway/edge/test_tls.py and a TLS without these: the library's"),
        ("Sessions of TLS 1.3 are", "tests/gateway/edge/test_tls.py"),
        ("those of TLS 1.2 may", "tests/gateway/edge/test_tls.py"),
        ("left alone for {}.", "holdmq.files.file_signature:SETTLED_S"),
        ("its worker, here 1,000 [...] RSA 2048. At", LISTENERS),
        ("| a connection | idle | [...] costs 20 ms", LISTENERS),
        ("At most {} handshakes", "gateway.edge.listeners:HANDSHAKES_MAX"),
        ("ends the connection ({}), a", "websockets.frames:CloseCode.UNSUPPORTED_DATA"),
        (
            "`gateway.packet_max_bytes` + {} too ({}).",
            "gateway.edge.core.websocket:MESSAGE_SLACK_BYTES, websockets.frames:CloseCode.MESSAGE_TOO_BIG",
        ),
        (
            "closes with {}, while draining with {}, and for anything else with {} and",
            (
                "gateway.edge.core.websocket:NORMAL, gateway.edge.core.websocket:GOING_AWAY, "
                "gateway.edge.core.websocket:POLICY_VIOLATION"
            ),
        ),
        ("an MQTT 3 client", OF_MQTT),
        ("refused with {} and a", "tests/holdmq/service/test_admin.py"),
        ("or none, with {}.", "tests/holdmq/service/test_admin.py"),
        ("HTTP/1.0 may", "of HTTP"),
        ("header, version {} or {};", "tests/gateway/edge/core/test_proxy_protocol.py"),
        ("(version {}, `PP2", "tests/gateway/edge/core/test_proxy_protocol.py"),
        ("`mode` ({}: owner", "holdmq/config/listeners.py"),
        ("since 1970; warned", "the kernel's clock"),
        ("of from {} on", "gateway.edge.listeners:EXPIRES_SOON_S"),
        ("came while {} handshakes", "gateway.edge.listeners:HANDSHAKES_MAX"),
        ("the key; {} is taken", "tests/holdmq/files/test_private_file.py"),
    ],
    "protection": [
        ("`connections_per_address_max` ({} = none)", "gateway.connections_per_address_max"),
        ("{} beyond it just closed", "gateway.protect.gate:ADDRESS_OVER"),
        ("`connect_rate_max` ({} = none)", "gateway.connect_rate_max"),
        ("`publish_rate_max` ({} = none)", "gateway.publish_rate_max"),
        ("past {} of that", "gateway.protect.metering:OWED_MAX_S"),
        ("`publish_bytes_rate_max` ({} = none)", "gateway.publish_bytes_rate_max"),
        ("`topic_creates_per_minute_max` ({})", "gateway.topic_creates_per_minute_max"),
        ("`flapping_connects_max` ({} = off)", "gateway.flapping_connects_max"),
        ("`login_failures_max` ({})", "gateway.login_failures_max"),
        ("`access.password_checks_max` ({})", "access.password_checks_max"),
        ("asks after {} of silence", "gateway.parent.binding:PROBE_AFTER_S"),
        (
            "gives up after {} -",
            (
                "= (gateway.parent.binding:PROBE_AFTER_S + gateway.parent.binding:PROBES_MAX"
                " * gateway.parent.binding:PROBE_EVERY_S) / 60"
            ),
        ),
        ("`unauthenticated_max_bytes` ({})", "gateway.unauthenticated_max_bytes"),
        ("can hold {} so", "gateway.ground.limits:CONNECT_MAX_BYTES"),
        ("a frame of {};", "gateway.edge.layered:BELOW_MAX_BYTES"),
        ("by their number ({} per listener)", "gateway.edge.listeners:HANDSHAKES_MAX"),
        ("within the last {} he is", "holdmq.credentials.login_failures:KNOWN_S"),
        ("has {} such addresses", "holdmq.credentials.login_failures:KNOWN_OF_USER_MAX"),
        ("the last {} of an address", "holdmq.credentials.login_failures:GUESSES_MAX"),
        ("at most {} lines a second and worker. **Hashes", "gateway.access.logins:LINES_PER_S"),
        ("takes some 20 [...] says, and", LISTENERS),
        ("(`overload_lag_ms`, {})", "gateway.overload_lag_ms"),
        ("(`overload_memory_bytes`; {} =", "gateway.overload_memory_bytes"),
        ("refused everything for {}.", "gateway.protect.core.overload:BUSY_MAX_S"),
        ("helped after {}, **does", "gateway.protect.core.overload:PAUSE_AFTER_S"),
        ("for {} at a time", "gateway.protect.overload:PAUSED_S"),
        (
            "after {} below {} of the limit",
            "gateway.protect.core.overload:CALM_S, gateway.protect.core.overload:CALM",
        ),
        ("to the kernel every {}, so", "gateway.protect.overload:GIVE_BACK_S"),
        (
            "`overload_level`: {}, {}, {} as above",
            (
                "gateway.protect.core.overload:NORMAL, gateway.protect.core.overload:REFUSING, "
                "gateway.protect.core.overload:PAUSING"
            ),
        ),
        ("`/readyz` says {}.", "tests/holdmq/service/test_admin.py"),
        ("({} = at least {}, and all", "gateway.drain_rate, gateway.worker.draining:DRAIN_RATE_MIN"),
        ("Exit code {}. Choose", "tests/integration/test_gateway_control.py"),
        ("wait {} longer", "= 2 * gateway.parent.supervisor:KILL_AFTER_S"),
        ("`shed_rate` ({}) clients", "gateway.shed_rate"),
        ("later. {} (the default) = never", "gateway.shed_above"),
        ("at most {} lines a second and worker. `conn", "gateway.observe.connection_log:LINES_PER_S"),
        ("the first {} characters", "gateway.observe.core.tracing:TEXT_MAX"),
        (
            "`--seconds` ({}, at most {}), {}, or",
            (
                "gateway.parent.control:TRACE_S, gateway.parent.control:TRACE_S_MAX, "
                "gateway.parent.control:TRACE_BYTES_MAX"
            ),
        ),
        ("past {} packets a second", "gateway.observe.tracing:LINES_PER_S"),
        ("At most {} run at a time", "gateway.parent.control:TRACES_MAX"),
    ],
    "access": [
        ("(MQTT 3: 2), also", OF_MQTT),
        ("crypt(5)", NAME),
        ("up to Python 3.12)", PROGRAM),
        ("alone** ({}, as", "tests/holdmq/files/test_private_file.py"),
        ("({}, {}: secrets", "tests/holdmq/files/test_private_file.py"),
        (
            "(argon2id, {}, {} passes)",
            "holdmq.credentials.password_hash:MEMORY_KIB, holdmq.credentials.password_hash:PASSES",
        ),
        ("within {} and many", "gateway.access.rehash:REHASH_INTERVAL_S"),
        ("(RFC 7677)", "of SCRAM"),
        ("the first time costs [...] loadtest.bench.listeners", LISTENERS),
        ("4; without any credentials {} -", ANONYMOUS),
        ("left alone for {}.", "holdmq.files.file_signature:SETTLED_S"),
        ("as it lasts, {} perhaps", "gateway.session_expiry_max_s"),
        ("`cache_refused_age_s` ({})", "access.cache_refused_age_s"),
        ("`cache_entries_max` ({})", "access.cache_entries_max"),
        ("as cores, at most {})", "gateway/access/askers.py"),
        ("up to {} times", "gateway.access.askers:LOST_MAX"),
        ("past {} (`access.asks_max`)", "access.asks_max"),
        ("it; {} is taken", "tests/holdmq/files/test_private_file.py"),
        ("again every {}", "gateway.access.askers:START_AGAIN_S"),
    ],
    "security": [
        ("mode {} ({} at most", "tests/holdmq/files/test_private_file.py"),
        ("TLS 1.2 or newer", "holdmq/rpc/tls.py: its minimum"),
        ("left alone for {}.", "holdmq.files.file_signature:SETTLED_S"),
        ("with mode {}: `--data`", "holdmq.files.disk:DIRECTORY_MODE"),
        ("of mode {} from", "holdmq/files/private_file.py"),
        ("MQTT: {} and", "gateway.port"),
        ("hold {}, all together", "gateway.edge.layered:BELOW_MAX_BYTES"),
        ("guess {} passwords", "gateway.login_failures_max"),
        ("registry {}, broker {} (RPC)", "registry.port, broker.port"),
        (
            "places for {}, send {} of {} items",
            "holdmq.rpc.server:HELLO_TIMEOUT_S, holdmq.rpc.server:HELLO_MAX_BYTES, holdmq/wire/untrusted.py",
        ),
        (
            "admin ports {}, {} to {}**",
            "registry.admin_port, broker.admin_port, console.admin_port",
        ),
        ("console {}**", "console.port"),
        ("Host gets {} on", "tests/holdmq/service/test_admin.py"),
        ("directories are {}, drafts", "holdmq.files.disk:DIRECTORY_MODE"),
        (
            "{} silent TCP connections to a TLS listener of the RPC make further handshakes wait {};",
            "holdmq.rpc.handshake:HANDSHAKES_MAX, holdmq.rpc.server:HELLO_TIMEOUT_S",
        ),
        ("up to {} at a time", "gateway.login_delay_max_s"),
        ("since 1970; warned", "the kernel's clock"),
        ("of from {} on", "holdmq.rpc.tls:EXPIRES_SOON_S"),
        (
            "more than {} to come, or more than {}",
            "holdmq.service.admin:ADMIN_REQUEST_S, holdmq.service.admin:ADMIN_REQUEST_MAX_BYTES",
        ),
        ("past {} at a time", "holdmq.service.admin:ADMIN_CONNECTIONS_MAX"),
        ("**HTTP {}, `", "tests/holdmq/service/test_admin.py"),
        ("read ({}, {}) what root", "tests/holdmq/files/test_private_file.py"),
    ],
    "mqtt": [
        ("MQTT 3.1, 3.1.1 and 5.0 over", OF_MQTT),
        ("- QoS 0, 1 and 2.", OF_MQTT),
        ("properties over {}, a", "holdmq/record/codec.py"),
        ("seconds (0 to {}: {}) after", "gateway.ground.delayed:DELAY_MAX_S"),
        ("seconds (0 to", EXAMPLE),
        ("after {} without success", "gateway.ground.limits:REROUTE_S"),
        ("of the broker after {}) ends", "holdmq.client.leads:FAILOVER_S"),
        (
            "Rules: {}; topics of one gateway's: {}, of all gateways': {};",
            (
                "holdmq.config.routes:ROUTES_MAX, holdmq.config.routes:TREES_MAX, "
                "gateway.publish.topics:TREES_READ_MAX"
            ),
        ),
        ("waited for {}), and", "gateway.ground.limits:SUBACK_WAIT_S"),
        ("of RFC 3339", "of a time"),
        ("Retain Handling 2", OF_MQTT),
        ("while {} others", "gateway.deliver.replay:LOCATING_MAX"),
        ("MQTT 3.1 and 3.1.1 clients", OF_MQTT),
        (
            "at most {} groups, and {} sessions",
            "broker.mqtt_shares.core.groups:GROUPS_MAX, broker.mqtt_shares.core.groups:MEMBERS_MAX",
        ),
        ("clean session 0)", OF_MQTT),
        ("DISCONNECT 0 and", OF_MQTT),
        ("Topic Alias Maximum ({})", "gateway.ground.limits:TOPIC_ALIAS_MAX"),
        ("at most {}, are named", "gateway.ground.limits:TOPIC_ALIASES_OUT_MAX"),
        ("Information** 0:", OF_MQTT),
        ("at most {} and {}, so", "gateway.edge.stragglers:LINGER_S, gateway.edge.parting:PARTING_BYTES_MAX"),
        ("(0x86; {} in MQTT 3)", ANONYMOUS),
        ("at most {} lines a second", "gateway.observe.connection_log:LINES_PER_S"),
        ("{} beyond it just", "gateway.protect.gate:CONNECTIONS_OVER"),
        ("{}: the largest will and {}", "gateway.ground.limits:CONNECT_MAX_BYTES, gateway/ground/limits.py"),
        ("{} × keep alive", "gateway/session/session.py"),
        ("key or value: {} - what happens: publishing", "gateway.brokers.core.producer:PENDING_MAX_BYTES"),
        ("key or value: {} - what happens: 0x97 (`topics", "gateway.ground.limits:TOPIC_WAITERS_MAX"),
        ("key or value: {} - what happens: slow", "gateway.deliver.catchup:CATCHUP_READERS_MAX"),
        ("key or value: {}, or its keep alive", "gateway.ground.limits:SEND_STALLED_S"),
        (
            "key or value: {}, of one with copies {} -",
            "gateway.ground.limits:REROUTE_S, holdmq.client.leads:FAILOVER_S",
        ),
        (
            "key or value: {}; {} - what",
            "gateway.parent.supervisor:SILENT_UNREADY_S, gateway.parent.supervisor:SILENT_KILL_S",
        ),
        ("key or value: {} - what happens: reset", "gateway.edge.stragglers:LINGER_S"),
    ],
    "tenants": [
        ("has 1 to", "not empty: tests/holdmq/names/test_tenants.py"),
        ("to {} letters", "holdmq.names.tenants:TENANT_BYTES_MAX"),
        ("with exit code {};", "holdmq.service.process:EXIT_FAILED"),
    ],
}
