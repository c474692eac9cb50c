"""Names that callers give."""

from __future__ import annotations

import pytest

from holdmq.client.names import check_group, check_topic
from holdmq.errors import UsageError


def test_a_name_that_a_client_may_use_passes() -> None:
    check_topic("orders")
    check_group("billing")


def test_a_name_that_a_client_may_not_use_is_its_error() -> None:
    with pytest.raises(UsageError, match="system topic"):
        check_topic("%RETRY%billing")
    with pytest.raises(UsageError, match="group name"):
        check_group("a b")
