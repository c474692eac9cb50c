from __future__ import annotations

import json

from spark_streaming.job.progress import backlog_of


def test_the_backlog_counts_queues_and_not_epochs() -> None:
    end = json.dumps({"b": 1, "b/t/0": 5})
    assert backlog_of(end, json.dumps({"b": 9, "b/t/0": 7, "b/u/0": 3})) == 5
    assert backlog_of(end, None) == 0
    assert backlog_of(None, end) == 5
