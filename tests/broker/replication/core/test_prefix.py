"""Where two logs part."""

from __future__ import annotations

import pytest

from broker.replication.core.messages import LogEpoch
from broker.replication.core.prefix import CommonPrefix, common_prefix, next_epoch

ONE = LogEpoch(1, 0)


@pytest.mark.parametrize(
    ("own", "own_end", "other", "end", "expected"),
    [
        ([ONE], 50, [ONE], 80, CommonPrefix(50, 1)),
        ([ONE], 80, [ONE], 50, CommonPrefix(50, 1)),
        # The other's next epoch began where this log is already longer.
        ([ONE], 80, [ONE, LogEpoch(2, 60)], 90, CommonPrefix(60, 1)),
        # Both went on in epochs of their own.
        ([ONE, LogEpoch(2, 40)], 80, [ONE, LogEpoch(3, 60)], 90, CommonPrefix(40, 1)),
        ([ONE, LogEpoch(3, 70)], 80, [ONE, LogEpoch(4, 60)], 90, CommonPrefix(60, 1)),
        # The same epoch at another start is another epoch.
        ([ONE, LogEpoch(2, 40)], 80, [ONE, LogEpoch(2, 41)], 90, CommonPrefix(40, 1)),
        # An epoch without a record parts logs of one length.
        ([ONE, LogEpoch(2, 50)], 50, [ONE, LogEpoch(3, 50)], 50, CommonPrefix(50, 1)),
        ([LogEpoch(5, 0)], 10, [ONE], 10, CommonPrefix(0, 0)),
        ([], 0, [ONE], 10, CommonPrefix(0, 0)),
    ],
)
def test_the_common_prefix_ends_where_epochs_part(
    own: list[LogEpoch], own_end: int, other: list[LogEpoch], end: int, expected: CommonPrefix
) -> None:
    assert common_prefix(own, own_end, other, end) == expected


def test_the_next_epoch_is_the_first_above() -> None:
    epochs = [ONE, LogEpoch(4, 10), LogEpoch(6, 20)]
    assert next_epoch(epochs, 1) == LogEpoch(4, 10)
    assert next_epoch(epochs, 4) == LogEpoch(6, 20)
    assert next_epoch(epochs, 6) is None
