from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from holdmq import telemetry
from holdmq.config import LogSection
from spark_streaming import main


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("java.lang.Error: oh", {"event": "java.lang.Error: oh"}),
        ("{ no JSON", {"event": "{ no JSON"}),
        (
            '{"event": "records lost", "records": 5, "level": "debug", "service": "spark"}',
            {"event": "records lost", "records": 5},
        ),
    ],
)
def test_what_the_jvm_and_its_workers_say_is_logged_once(line: str, expected: dict[str, object]) -> None:
    stream = io.StringIO()
    log = telemetry.setup("stats", LogSection(format="json"), stream)
    main._say(log, line)
    found = json.loads(stream.getvalue())
    assert {**found, **expected, "library": "spark", "service": "stats", "level": "warning"} == found
