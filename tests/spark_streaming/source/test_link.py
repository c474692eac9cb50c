"""What a Python worker of Spark pays for a Link; test_reader has what it does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from holdmq.errors import TransportError
from spark_streaming.source.link import close_links, link_to

PROGRAM = """
import sys, structlog
from spark_streaming.source.link import link_to
link_to(["127.0.0.1:1"])
print([name for name in ("holdmq.config.model", "pydantic") if name in sys.modules])
log = structlog.get_logger("holdmq.spark")
log.warning("first", records=1)
log.info("second")
"""


def test_a_worker_loads_what_its_log_needs_with_the_first_event() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    first, second = map(json.loads, done.stderr.splitlines())
    assert (first["event"], first["records"], first["level"]) == ("first", 1, "warning")
    assert (second["event"], second["service"]) == ("second", "spark")


def test_links_that_are_closed_leave_no_thread_and_the_next_one_is_new() -> None:
    before = link_to(["127.0.0.1:1"])
    assert link_to(["127.0.0.1:1"]) is before
    with pytest.raises(TransportError):
        before.snapshot(lambda _: True)
    close_links()
    assert [t.name for t in threading.enumerate() if t.name == "holdmq link"] == []
    assert link_to(["127.0.0.1:1"]) is not before
    close_links()
    close_links()
