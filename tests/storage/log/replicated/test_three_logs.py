"""Three logs whose leaders change while everything fails, by seed: they end the same, nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import structlog
from log_shard import LogShard

from storage.log.replicated import replaying
from storage.log.timer import releases, rolling

pytestmark = pytest.mark.timeout(600)

STEPS = 500


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hundreds of starts have nothing new to say; a batch of copies fits a segment of 2 KiB."""
    monkeypatch.setattr(releases, "BATCH_BYTES", 1000)
    monkeypatch.setattr(rolling, "SIZE_BYTES", 1000)
    monkeypatch.setattr(replaying, "READ_BYTES", 700)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("retention_segments", [0, 3])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_three_logs_end_the_same_and_keep_what_was_confirmed(flush: str, retention_segments: int) -> None:
    did: Counter[str] = Counter()
    for seed in range(6):
        shard = LogShard(seed, flush, retention_segments)
        for number in range(STEPS):
            shard.step()
            if number % 50 == 0:
                shard.compare()
        shard.heal()
        shard.compare()
        shard.let_each_lead()
        shard.check_whole()
        did.update(shard.did)
    wanted = {"elected", "cut", "began anew", "grew", "killed", "restarted", "lost power", "full", "broken"}
    assert wanted | {"damaged"} <= did.keys(), "a run in which it does not happen says nothing of it"
    assert ("lost records" in did) == (flush == "async"), "what is fsynced is not lost"
