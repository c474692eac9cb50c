"""Notices of alarms in the log of the process that raises them."""

from __future__ import annotations

from holdmq.alarms.core.alarms import Notice, State
from holdmq.service import telemetry

log = telemetry.get_logger()


def log_notice(notice: Notice) -> None:
    """Log what people are told."""
    fields = notice._asdict() | notice.key._asdict()
    del fields["key"], fields["state"]
    if notice.state is State.OVER:
        log.info("an alarm is over", **fields)
    elif notice.state is State.LASTS:
        log.warning("an alarm lasts", **fields)
    else:
        log.warning("an alarm is raised", **fields)
