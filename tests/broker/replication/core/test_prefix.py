"""Where two logs part."""

from __future__ import annotations

import pytest

from broker.replication.core.prefix import CommonPrefix, common_prefix, next_epoch
from storage.api.replication import Epoch

ONE = Epoch(1, 0)


@pytest.mark.parametrize(
    ("own", "own_end", "other", "end", "expected"),
    [
        ([ONE], 50, [ONE], 80, CommonPrefix(50, 1)),
        ([ONE], 80, [ONE], 50, CommonPrefix(50, 1)),
        # The other's next epoch began where this log is already longer.
        ([ONE], 80, [ONE, Epoch(2, 60)], 90, CommonPrefix(60, 1)),
        # Both went on in epochs of their own.
        ([ONE, Epoch(2, 40)], 80, [ONE, Epoch(3, 60)], 90, CommonPrefix(40, 1)),
        ([ONE, Epoch(3, 70)], 80, [ONE, Epoch(4, 60)], 90, CommonPrefix(60, 1)),
        # The same epoch at another start is another epoch.
        ([ONE, Epoch(2, 40)], 80, [ONE, Epoch(2, 41)], 90, CommonPrefix(40, 1)),
        # An epoch without a record parts logs of one length.
        ([ONE, Epoch(2, 50)], 50, [ONE, Epoch(3, 50)], 50, CommonPrefix(50, 1)),
        ([Epoch(5, 0)], 10, [ONE], 10, CommonPrefix(0, 0)),
        ([], 0, [ONE], 10, CommonPrefix(0, 0)),
    ],
)
def test_the_common_prefix_ends_where_epochs_part(
    own: list[Epoch], own_end: int, other: list[Epoch], end: int, expected: CommonPrefix
) -> None:
    assert common_prefix(own, own_end, other, end) == expected


def test_the_next_epoch_is_the_first_above() -> None:
    epochs = [ONE, Epoch(4, 10), Epoch(6, 20)]
    assert next_epoch(epochs, 1) == Epoch(4, 10)
    assert next_epoch(epochs, 4) == Epoch(6, 20)
    assert next_epoch(epochs, 6) is None
