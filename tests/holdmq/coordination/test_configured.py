"""The configuration names the coordinator, and what its objects and keys are called."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest
from etcd_members import etcd_cluster
from kubernetes_leases import NAMESPACE, kubeconfig, lease_server

from holdmq.config.sources import load
from holdmq.coordination.api import ShardState
from holdmq.coordination.configured import coordinator_of
from holdmq.errors import ConfigError

STATE = ShardState(1, "a", ("a",), 1)
NAMES = ["cluster.name=fleet", "broker.name=broker-7"]


def test_a_broker_that_is_alone_has_none() -> None:
    assert coordinator_of(load(None, [], {}), "a") is None


async def test_keys_of_etcd_are_named_by_prefix_cluster_and_shard(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path, 1) as cluster:
        urls = f"coordination.etcd.urls={','.join(cluster.urls)}"
        config = load(None, [*NAMES, urls, "coordination.kind=etcd", "coordination.etcd.prefix=/x/"], {})
        coordinator = coordinator_of(config, "a")
        assert coordinator is not None
        assert await coordinator.compare_and_set(0, STATE)
        assert await coordinator.hold(9)
        await coordinator.close()
        answer = cluster.members[0].ask(
            "/v3/kv/range", {"key": "AA==", "range_end": "AA==", "keys_only": True}
        )
        keys = sorted(base64.b64decode(each["key"]) for each in answer["kvs"])
        assert keys == [b"/x/fleet/broker-7/lease", b"/x/fleet/broker-7/state"]


async def test_objects_of_kubernetes_are_named_by_cluster_and_shard(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    async with lease_server() as server:
        path.write_text(kubeconfig(server))
        sets = [
            *NAMES, "coordination.kind=kubernetes", f"coordination.kubernetes.kubeconfig={path}",
            f"coordination.kubernetes.namespace={NAMESPACE}",
        ]  # fmt: skip
        coordinator = coordinator_of(load(None, sets, {}), "a")
        assert coordinator is not None
        assert await coordinator.compare_and_set(0, STATE)
        await coordinator.close()
        assert server.names == ["fleet.broker-7"]


def test_an_etcd_without_urls_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"coordination\.etcd\.urls does not say where"):
        coordinator_of(load(None, ["coordination.kind=etcd"], {}), "a")


@pytest.mark.parametrize(("kind", "module"), [("etcd", "aiohttp"), ("kubernetes", "kubernetes_asyncio")])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, module: str) -> None:
    for name in [each for each in sys.modules if each.startswith(("holdmq.coordination.", module))]:
        if name not in ("holdmq.coordination.api", "holdmq.coordination.configured"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'holdmq\[{kind}\]'"):
        coordinator_of(load(None, [f"coordination.kind={kind}"], {}), "a")
