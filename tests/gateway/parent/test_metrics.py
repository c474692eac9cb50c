from __future__ import annotations

from typing import Any

from prometheus_client.core import Metric

from gateway.ground.counters import Counters
from gateway.parent.metrics import Reports


def report(connections: int, accepted: int, expires_at: float = 0.0, **refused: int) -> dict[str, Any]:
    listener = {
        "connections": connections,
        "accepted_total": accepted,
        "certificate_expires_at": expires_at,
        "refused": refused,
    }
    return {
        "ready": True,
        "numbers": Counters().snapshot(),
        "refused": refused,
        "listeners": {"tls": listener},
    }


def samples(reports: Reports, name: str) -> dict[tuple[str, ...], float]:
    """Label values → value of the samples with this name."""
    families: list[Metric] = [f for f in reports.families() if f.name == name]
    return {tuple(s.labels.values()): s.value for f in families for s in f.samples}


def test_a_listener_s_numbers_are_the_sum_over_all_workers() -> None:
    reports = Reports(2)
    reports.received(0, report(3, 10, 2_000.0, tls_handshake=2))
    reports.received(1, report(4, 20, 1_000.0, tls_handshake=1, keep_alive=5))
    area = "holdmq_gateway_listener"
    assert samples(reports, f"{area}_connections") == {("tls",): 7}
    assert samples(reports, f"{area}_accepted") == {("tls",): 30}
    assert samples(reports, f"{area}_refused") == {("tls", "keep_alive"): 5, ("tls", "tls_handshake"): 3}
    assert samples(reports, f"{area}_certificate_expiry_seconds") == {("tls",): 1_000.0}


def test_a_listener_s_totals_do_not_fall_when_a_worker_ends() -> None:
    reports = Reports(1)
    reports.received(0, report(3, 10, tls_handshake=2))
    reports.ended(0)
    area = "holdmq_gateway_listener"
    assert samples(reports, f"{area}_connections") == {("tls",): 0}
    assert samples(reports, f"{area}_accepted") == {("tls",): 10}
    reports.received(0, report(1, 1, tls_handshake=1))
    assert samples(reports, f"{area}_accepted") == {("tls",): 11}
    assert samples(reports, f"{area}_refused") == {("tls", "tls_handshake"): 3}
    assert samples(reports, f"{area}_certificate_expiry_seconds") == {}


def test_numbers_of_ended_workers_add_up() -> None:
    reports, times = Reports(1), 3
    for _ in range(times):
        reports.received(0, report(0, 5, tls_handshake=1))
        reports.ended(0)
    assert samples(reports, "holdmq_gateway_listener_accepted") == {("tls",): 5 * times}
    assert samples(reports, "holdmq_gateway_listener_refused") == {("tls", "tls_handshake"): times}
