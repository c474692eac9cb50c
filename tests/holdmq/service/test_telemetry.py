from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest

import holdmq
from holdmq.config.model import LogSection
from holdmq.service import telemetry


@pytest.fixture(autouse=True)
def _put_logging_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_one_json_object_per_line() -> None:
    stream = io.StringIO()
    telemetry.setup("broker", LogSection(), stream).info("serves", port=3)
    (line,) = lines(stream)
    assert (line["event"], line["service"], line["level"], line["port"]) == ("serves", "broker", "info", 3)
    assert line["timestamp"].endswith("Z")


def test_lines_of_a_replica_say_which_one_speaks_where_many_write() -> None:
    stream, terminal = io.StringIO(), Terminal()
    log = telemetry.setup("broker", LogSection(), stream, replica="b")
    log.info("serves")
    log.info("another one is said to lead", replica="c")
    logging.getLogger("aiohttp").warning("a library speaks")
    assert [line["replica"] for line in lines(stream)] == ["b", "c", "b"]
    telemetry.setup("broker", LogSection(), terminal, replica="b").info("serves")
    assert "replica" not in terminal.getvalue(), "a terminal has one process, or holdmq up names it"


def test_a_terminal_gets_lines_for_people() -> None:
    stream = Terminal()
    telemetry.setup("broker", LogSection(), stream).info("serves", port=3)
    assert "serves" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_what_devices_choose_is_visible_in_lines_for_people_and_does_nothing() -> None:
    for stream in (Terminal(), io.StringIO()):
        logger = telemetry.setup("gateway", LogSection(format="human"), stream)
        logger.info("client \x9b31m", client_id="a\x1b]0;t\x07\nerror", topics=["\x1b[2J"])
        try:
            raise ValueError("\x1b[2Jof a device\u202e")
        except ValueError:
            logger.exception("failed")
        logging.getLogger("some.library").warning("seen \x1b[2J")
        shown = stream.getvalue()
        assert "\\x1b]0;t\\x07\\nerror" in shown
        assert "\\x1b[2Jof a device\\u202e" in shown
        assert "seen \\x1b[2J" in shown
        for sequence in ("\x9b", "\x1b]", "\x1b[2J", "\u202e"):
            assert sequence not in shown


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_the_format_may_be_forced(stream: io.StringIO) -> None:
    assert telemetry.is_human(LogSection(format="human"), stream)
    assert not telemetry.is_human(LogSection(format="json"), stream)


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    log = telemetry.setup("broker", LogSection(level="warning"), stream)
    log.info("hidden")
    log.warning("shown")
    assert [line["event"] for line in lines(stream)] == ["shown"]


def test_libraries_speak_through_the_same_stream_and_only_of_trouble() -> None:
    stream = io.StringIO()
    telemetry.setup("stats", LogSection(), stream)
    logging.getLogger("a_library").info("chatter")
    logging.getLogger("a_library").warning("lost %s", "it")
    (line,) = lines(stream)
    assert (line["event"], line["library"], line["service"]) == ("lost it", "a_library", "stats")


def test_an_exception_is_logged_with_frames_but_without_the_values_of_variables() -> None:
    stream = io.StringIO()
    log = telemetry.setup("broker", LogSection(), stream)
    try:
        password = "s3cret"
        raise ValueError(len(password))
    except ValueError:
        log.exception("failed")
    assert "ValueError" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()


def test_a_logger_made_at_import_follows_a_later_set_up() -> None:
    early = telemetry.get_logger(part="writer")
    stream = io.StringIO()
    telemetry.setup("broker", LogSection(), stream)
    early.info("flushed")
    assert lines(stream)[0]["part"] == "writer"


def test_warnings_of_python_reach_the_log() -> None:
    stream = io.StringIO()
    telemetry.setup("broker", LogSection(), stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    assert "old call" in stream.getvalue()


def test_metrics_say_what_runs_and_hold_the_process() -> None:
    text = generate_latest(telemetry.METRICS).decode()
    assert f'version="{holdmq.__version__}"' in text
    assert 'build="sources"' in text
    assert "process_resident_memory_bytes" in text


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False


def test_a_reader_that_is_gone_costs_lines_and_nothing_else() -> None:
    before = telemetry.LINES_LOST._value.get()
    log = telemetry.setup("broker", LogSection(), Gone())
    log.info("nobody reads this")
    logging.getLogger("library").error("nor this")
    assert telemetry.LINES_LOST._value.get() == before + 2
