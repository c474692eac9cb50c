"""What a Python worker of Spark pays for a Link; test_reader has what it does."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import sys, structlog
from spark_streaming.source.link import link_to
link_to(["127.0.0.1:1"])
print([name for name in ("holdmq.config", "pydantic") if name in sys.modules])
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
