"""Two clusters at one registry: they are listed, and their brokers by cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import flags_of, run_here
from processes import Stack, end_all


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("clusters")
    for name in ("first", "second"):
        (directory / name).mkdir()
    first = Stack(directory / "first", {"cluster.name": "plant"})
    second = Stack(
        directory / "second",
        {"registry.port": first.registry_port, "broker.name": "broker-1", "cluster.name": "office"},
    )
    try:
        first.start("registry")
        first.start("broker")
        second.start("broker")
        yield first
    finally:
        end_all([second, first])


def shown(stack: Stack, *words: str) -> Any:
    done = run_here("cluster", *words, "--json", *flags_of(stack))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_clusters_are_listed_with_their_brokers(stack: Stack) -> None:
    assert shown(stack, "list") == [
        {"cluster": "office", "brokers": ["broker-1"]},
        {"cluster": "plant", "brokers": ["broker-0"]},
    ]


@pytest.mark.parametrize(
    ("cluster", "names"),
    [("plant", ["broker-0"]), ("office", ["broker-1"]), ("", ["broker-0", "broker-1"]), ("none", [])],
)
def test_brokers_are_listed_by_cluster(stack: Stack, cluster: str, names: list[str]) -> None:
    rows = shown(stack, "brokers", *(["--cluster", cluster] if cluster else []))
    assert [row["broker"] for row in rows] == names
