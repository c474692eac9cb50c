"""Rows of pages for who runs gateways: as `page_facts` says."""

from __future__ import annotations

from typing import Final

from page_facts_of_operators import OF_MQTT

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
}
