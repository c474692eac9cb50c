"""The service `holdmq stats`: keeps its queries running until it is told to stop.

What ends a query otherwise (a failed batch, a JVM that died) ends the process with an error; started
again, by `holdmq up` or whatever supervises it, it goes on from the checkpoints.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import Gauge

from holdmq.client.presence import Presence
from holdmq.config.model import Config
from holdmq.errors import ConfigError, HoldMQError
from holdmq.rpc.security import Security
from holdmq.service.process import Service
from holdmq.service.telemetry import METRICS, Logger
from spark_streaming.job.backlog import sample_backlogs
from spark_streaming.job.home import JobDirectory
from spark_streaming.job.jvm import is_submitted
from spark_streaming.job.opening import open_query, open_samples, put_aside
from spark_streaming.job.parts import QueryPart, every_part, parts_of
from spark_streaming.job.query import Query
from spark_streaming.job.session import SparkJobSession, start_session
from spark_streaming.job.sink import Sink
from spark_streaming.job.warming import warm_up
from spark_streaming.source.options import ENV_SECRET, SECURITY

DRAIN_WAIT_S: Final = 20.0
"""How long a stop waits for the running batch; one of the largest takes a few seconds."""
WATCH_INTERVAL_S: Final = 5.0
PLANNER_WAIT_S: Final = 30.0
"""How long the next query's start waits for the planner of the one before. Spark gives a planner's process
ten seconds to connect, which several that start at once on a busy machine do not keep."""
JVM_EXIT_WAIT_S: Final = 1.0
"""How long a JVM whose connections just broke may take until its end is known."""

_OWN_FIELDS: Final = frozenset({"event", "service", "level", "timestamp", "library"})

BACKLOG: Final = Gauge(
    "holdmq_stats_backlog_messages", "Messages that the last batch left unread.", registry=METRICS
)


async def main(config: Config, service: Service, *, is_once: bool = False, is_rebuild: bool = False) -> None:
    """Run the job until `service.stopping`; raises HoldMQError when a query or its JVM fails.

    `is_once`: count what is there by now, then return. `is_rebuild`: put tables and checkpoints aside first,
    so that the whole log is counted anew.
    """
    stats = config.stats
    home = await asyncio.to_thread(JobDirectory, Path(stats.data_dir))
    session: SparkJobSession | None = None
    queries: list[Query] = []
    samples: Sink | None = None
    presence = Presence(
        config.registries(), "stats", "spark", stats.data_dir, f"stats-{os.getpid()}", Security.of(config)
    )
    try:
        parts = parts_of(stats)
        if is_rebuild:
            now = dt.datetime.now(dt.UTC)
            _say_aside(service, await asyncio.to_thread(put_aside, stats, home, every_part(stats), now))
        queries += [await asyncio.to_thread(open_query, stats, home, part) for part in parts]
        if stats.backlog_interval_s:
            samples = await asyncio.to_thread(open_samples, stats)
        security = _security_options(config)  # before the JVM, which takes the environment with it
        session = await asyncio.to_thread(start_session, stats, partial(_say, service.log))
        options = {
            "registry": ",".join(config.registries()),
            "cluster": config.client.cluster,
            "starting_offsets": "earliest",
            "max_records_per_batch": str(stats.max_records_per_batch),
            "fail_on_data_loss": "false",
            **security,
        }
        if not await _warmed_up(session, parts, service):
            return
        for query in queries:
            at_most = {"max_partitions": str(query.part.tasks_max(session.cores))}
            await asyncio.to_thread(query.start, session.spark, {**options, **at_most}, is_once)
            if query is not queries[-1]:
                await asyncio.to_thread(query.await_planner, PLANNER_WAIT_S)
        service.ready(lambda: _is_running(session))
        service.log.info("counting", sink=stats.sink, once=is_once)
        if not is_once:
            presence.start()
        beside = [_watch(queries[0])]
        if samples is not None and is_once:
            await sample_backlogs(config, samples, is_once=True)
        elif samples is not None:
            beside.append(sample_backlogs(config, samples))
        await _run(queries, beside, session, service, is_once)
        await presence.leave()  # what raises instead is to be noticed
    finally:
        await presence.close()
        if session is not None:
            await asyncio.to_thread(session.stop)
        for query in queries:
            query.close()
        if samples is not None:
            samples.close()
        home.close()


def _security_options(config: Config) -> dict[str, str]:
    """The source's options for ``[client]``; a secret that is no file goes by the environment."""
    security = Security.of(config)
    if security is None:
        return {}
    if security.secret and is_submitted() and os.environ.get(ENV_SECRET) != security.secret:
        raise ConfigError(
            "spark-submit has started its JVM, which knows no secret of the configuration; name a file as "
            f"client.secret_file, or put the secret into the environment of spark-submit as {ENV_SECRET}"
        )
    if security.secret:
        os.environ[ENV_SECRET] = security.secret
    return {name: str(getattr(security, name)) for name in SECURITY}


async def _warmed_up(session: SparkJobSession, parts: Sequence[QueryPart], service: Service) -> bool:
    """Run every part's plan over nothing; False when stopped before a cluster had cores for it."""
    warming = asyncio.create_task(asyncio.to_thread(warm_up, session.spark, parts))
    # A stop ends it with Spark, which nobody has to be told.
    warming.add_done_callback(lambda task: task.cancelled() or task.exception())
    stopping = asyncio.create_task(service.stopping.wait())
    await asyncio.wait({warming, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not warming.done():
        service.log.info("stopped", counting=False)
        return False
    stopping.cancel()
    if warming.exception() is not None:
        await _tell_of_jvm(session)
        cause = _cause(warming)
        service.log.error("Spark does not run the job's plans", cause=cause)
        raise HoldMQError(
            f"Spark does not run the job's plans: {cause.splitlines()[0]}; the Python of its workers "
            "(PYSPARK_PYTHON) needs HoldMQ, on this machine and on those of a cluster"
        )
    return True


async def _run(
    queries: Sequence[Query],
    beside: Sequence[Coroutine[Any, Any, None]],
    session: SparkJobSession,
    service: Service,
    is_once: bool,
) -> None:
    ended = asyncio.create_task(_await_end(queries, is_once))
    # Whoever comes first is reported below; a JVM that dies fails every one of them.
    ended.add_done_callback(lambda task: task.cancelled() or task.exception())
    stopping = asyncio.create_task(service.stopping.wait())
    watching = [asyncio.create_task(one) for one in beside]
    try:
        await asyncio.wait({ended, stopping, *watching}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done() and not ended.done():
            await asyncio.gather(*(asyncio.to_thread(query.stop, DRAIN_WAIT_S) for query in queries))
            service.log.info("stopped")
            return
        failed = ended if ended.done() else next(task for task in watching if task.done())
        if is_once and failed is ended and ended.exception() is None:
            service.log.info("everything is counted")
            return
        await _tell_of_jvm(session)
        cause = _cause(failed)
        service.log.error("the query ended", cause=cause)
        raise HoldMQError(
            f"the query ended: {cause.splitlines()[0]}; start again to go on from the checkpoint"
        )
    finally:
        for task in (stopping, *watching):
            task.cancel()


async def _tell_of_jvm(session: SparkJobSession) -> None:
    """Raise HoldMQError if the JVM has ended, which is then why nothing else works."""
    end = await asyncio.to_thread(session.jvm_end, JVM_EXIT_WAIT_S)
    if end is not None:
        raise HoldMQError(f"the JVM of Spark {end}; start again to go on")


async def _await_end(queries: Sequence[Query], is_once: bool) -> None:
    """Return when the first query ends, or all if they are to end; raises what ended one."""
    waiting = [asyncio.create_task(asyncio.to_thread(query.await_end)) for query in queries]
    until = asyncio.FIRST_EXCEPTION if is_once else asyncio.FIRST_COMPLETED
    for task in waiting:
        # The first that ends is reported; the others end with the JVM.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    done, _ = await asyncio.wait(waiting, return_when=until)
    for task in done:
        task.result()


async def _watch(query: Query) -> None:
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        backlog = await asyncio.to_thread(query.backlog)
        if backlog is not None:
            BACKLOG.set(backlog)


def _say_aside(service: Service, places: Sequence[str]) -> None:
    if places:
        service.log.warning(
            "the tables and checkpoints of before are put aside, and the log is counted anew",
            places=", ".join(places),
        )


def _is_running(session: SparkJobSession | None) -> tuple[bool, str]:
    if session is None or session.jvm_end() is not None:
        return False, "the JVM of Spark has ended"
    return True, "counting"


def _cause(ended: asyncio.Task[Any]) -> str:
    error = ended.exception()
    return str(error).strip() or repr(error) if error is not None else "it was stopped from outside"


def _say(log: Logger, line: str) -> None:
    """Log a line of the JVM or of a Python worker; the source in a worker speaks JSON."""
    try:
        fields = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        fields = {}
    known = {name: fields[name] for name in fields if name not in _OWN_FIELDS}
    log.warning(str(fields.get("event", line)), library="spark", **known)
