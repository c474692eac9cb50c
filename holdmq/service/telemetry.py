"""Logging and metrics of every process.

Logs are structured (structlog), one event per line, to standard error: for people on a terminal, as
JSON otherwise. What libraries say through ``logging`` comes out the same way. Metrics live in
``METRICS``; a module declares its own at import, named ``holdmq_<area>_<what>_<unit>``, with labels
that are bounded (never a client id)::

    REFUSED = Counter("holdmq_broker_refused_total", "Requests refused.", ["code"], registry=METRICS)
"""

from __future__ import annotations

import io
import logging
import platform
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, TextIO, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics

import holdmq
from holdmq.config.model import LogSection
from holdmq.names.visible_text import visible, visible_lines
from holdmq.service.build import running_build


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Import as if `package` were not installed; nothing changes where it is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


# structlog loads rich, an eighth of a service's start, for tracebacks that are never rendered with it here.
with _without("rich"):
    import structlog

# A *_created gauge beside every counter doubles what a scraper stores, and nothing reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]

METRICS: Final = CollectorRegistry(auto_describe=False)
"""The registry behind ``/metrics``; every metric of HoldMQ is registered here."""

ProcessCollector(registry=METRICS)
Gauge(
    "holdmq_build_info",
    "Always 1; the labels say what runs.",
    ["version", "python", "build"],
    registry=METRICS,
).labels(holdmq.__version__, platform.python_version(), running_build()).set(1)

LINES_LOST: Final = Counter(
    "holdmq_log_lines_lost_total", "Log lines that standard error did not take.", registry=METRICS
)

Logger = structlog.typing.FilteringBoundLogger

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Sink:
    """A stream whose reader may be gone: a line that it does not take is counted, nothing fails."""

    __slots__ = ("__weakref__", "_stream")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a broken pipe, a full disk; a stream closed at exit
            LINES_LOST.inc()

    def flush(self) -> None:
        """Nothing is left to flush."""


def is_human(log: LogSection, stream: TextIO) -> bool:
    """Return whether lines written to `stream` are for people: as configured, else if it is a terminal."""
    if log.format == "auto":
        return stream.isatty()
    return log.format == "human"


def setup(service: str, log: LogSection, stream: TextIO | None = None, *, replica: str = "") -> Logger:
    """Send structlog and ``logging`` to `stream` (None = standard error), and return the service's logger.

    `replica`: which one of several this process is; lines as JSON, which many processes may write in one
    place, say it, "" = it is the only one.
    Call once per process, before anything logs; calling again replaces the set-up.
    """
    target = sys.stderr if stream is None else stream
    human = is_human(log, target)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _name_service(service, "" if human else replica),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if human else "iso", utc=not human),
    ]
    ending = _rendering(human, target)
    sink = cast("TextIO", _Sink(target))
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[log.level]),
        logger_factory=structlog.WriteLoggerFactory(sink),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_library],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    logging.getLogger().handlers[:] = [handler]
    set_level(log)
    logging.captureWarnings(True)
    return get_logger()


def set_level(log: LogSection) -> None:
    """Write from now on what is at least as severe as `log` says; the rest of the set-up stays."""
    kept = {
        **structlog.get_config(),
        "wrapper_class": structlog.make_filtering_bound_logger(_LEVELS[log.level]),
    }
    structlog.configure(**kept)
    # Libraries chat at info; their warnings are what an operator needs.
    least = logging.DEBUG if log.level == "debug" else max(logging.WARNING, _LEVELS[log.level])
    logging.getLogger().setLevel(least)


def get_logger(**bound: Any) -> Logger:
    """Return a logger whose lines carry `bound`; usable at import, before ``setup``."""
    logger: Logger = structlog.get_logger(**bound)
    return logger


def _rendering(human: bool, target: TextIO) -> list[structlog.typing.Processor]:
    if not human:
        # Local variables may hold credentials or payloads: they stay out of the log.
        frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        return [structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer()]
    return [
        _short_time,
        _visible_texts,
        structlog.dev.ConsoleRenderer(
            colors=target.isatty(), exception_formatter=_visible_traceback, pad_event_to=0
        ),
    ]


def _visible_texts(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Names that devices chose: what is no text is shown by its repr, which escapes as JSON does."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = visible(value)
    return event


def _visible_traceback(stream: TextIO, exc_info: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    stream.write(visible_lines(text.getvalue()))


def _name_service(service: str, replica: str) -> structlog.typing.Processor:
    def add(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("service", service)
        if replica:
            event.setdefault("replica", replica)
        return event

    return add


def _name_library(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["library"] = record.name
    return event


def _short_time(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    # People read the clock to the millisecond, and know on which service's terminal they are.
    event["timestamp"] = str(event["timestamp"])[:-3]
    event.pop("service", None)
    return event
