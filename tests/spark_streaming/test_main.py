from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator

import pytest
import structlog

from holdmq.config.model import Config, LogSection
from holdmq.errors import ConfigError
from holdmq.service import telemetry
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


def test_a_secret_that_the_jvm_of_spark_submit_does_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config.model_validate({"client": {"access_key": "stats", "secret": "s" * 32}})
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigError, match=r"name a file as client\.secret_file, or put the secret"):
        main._security_options(config)
    monkeypatch.setenv("HOLDMQ_CLIENT__SECRET", "s" * 32)
    assert main._security_options(config)["access_key"] == "stats"
    monkeypatch.delenv("HOLDMQ_CLIENT__SECRET")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    assert "secret" not in main._security_options(config)
    assert os.environ["HOLDMQ_CLIENT__SECRET"] == "s" * 32
