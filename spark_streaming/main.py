"""The service `holdmq stats`: keeps the TPS query running until it is told to stop.

What ends the query otherwise (a failed batch, a JVM that died) ends the process with an error; started
again, by `holdmq up` or whatever supervises it, it goes on from the checkpoint.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import Gauge

from holdmq.config import Config
from holdmq.errors import HoldMQError
from holdmq.process import Service
from holdmq.rpc.security import Security
from holdmq.telemetry import METRICS, Logger
from spark_streaming.job.home import Home
from spark_streaming.job.session import Session, start_session
from spark_streaming.job.sink import Sink
from spark_streaming.job.tps import TpsJob
from spark_streaming.job.warming import warm_up
from spark_streaming.source.options import ENV_SECRET
from spark_streaming.tables import TPS_1S, TPS_1S_SCHEMA

DRAIN_WAIT_S: Final = 20.0
"""How long a stop waits for the running batch; one of the largest takes a few seconds."""
WATCH_INTERVAL_S: Final = 5.0
JVM_EXIT_WAIT_S: Final = 1.0
"""How long a JVM whose connections just broke may take until its exit code is there."""

_OWN_FIELDS: Final = frozenset({"event", "service", "level", "timestamp", "library"})

BACKLOG: Final = Gauge(
    "holdmq_stats_backlog_messages", "Messages that the last batch left unread.", registry=METRICS
)


async def main(config: Config, service: Service) -> None:
    """Run the job until `service.stopping`; raises HoldMQError when the query or its JVM fails."""
    stats = config.stats
    home = await asyncio.to_thread(Home, Path(stats.data_dir))
    session: Session | None = None
    try:
        retention = dt.timedelta(seconds=stats.tps_1s_retention_s)
        sink = await asyncio.to_thread(Sink, home.table(TPS_1S), TPS_1S_SCHEMA, retention)
        job = TpsJob(home.checkpoint(TPS_1S), sink)
        security = _security_options(config)  # before the JVM, which takes the environment with it
        session = await asyncio.to_thread(start_session, stats, partial(_say, service.log))
        options = {
            "registry": ",".join(config.registries()),
            "starting_offsets": "earliest",
            "max_records_per_batch": str(stats.max_records_per_batch),
            "max_partitions": str(stats.cores),
            "fail_on_data_loss": "false",
            **security,
        }
        await asyncio.to_thread(warm_up, session.spark)
        await asyncio.to_thread(job.start, session.spark, options, stats.trigger_interval_ms)
        service.ready(lambda: _is_running(session))
        service.log.info("counting", table=str(sink.path))
        await _run(job, session, service)
    finally:
        if session is not None:
            await asyncio.to_thread(session.stop)
        home.close()


def _security_options(config: Config) -> dict[str, str]:
    """The source's options for ``[client]``; a secret that is no file goes by the environment."""
    security = Security.of(config)
    if security is None:
        return {}
    if security.secret:
        os.environ[ENV_SECRET] = security.secret
    return {
        "access_key": security.access_key,
        "secret_file": security.secret_file,
        "tls": str(security.tls).lower(),
        "tls_ca": security.tls_ca,
        "tls_cert": security.tls_cert,
        "tls_key": security.tls_key,
        "tls_server_name": security.tls_server_name,
    }


async def _run(job: TpsJob, session: Session, service: Service) -> None:
    ended = asyncio.create_task(asyncio.to_thread(job.await_end))
    # Whoever comes first is reported below; a JVM that dies fails every one of them.
    ended.add_done_callback(lambda task: task.cancelled() or task.exception())
    stopping = asyncio.create_task(service.stopping.wait())
    watching = asyncio.create_task(_watch(job))
    try:
        await asyncio.wait({ended, stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done() and not ended.done():
            await asyncio.to_thread(job.stop, DRAIN_WAIT_S)
            service.log.info("stopped")
            return
        code = await asyncio.to_thread(session.jvm_exit_code, JVM_EXIT_WAIT_S)
        if code is not None:
            raise HoldMQError(f"the JVM of Spark ended with exit code {code}; start again to go on")
        failed = ended if ended.done() else watching
        cause = _cause(failed)
        service.log.error("the query ended", cause=cause)
        raise HoldMQError(
            f"the query ended: {cause.splitlines()[0]}; start again to go on from the checkpoint"
        )
    finally:
        stopping.cancel()
        watching.cancel()


async def _watch(job: TpsJob) -> None:
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        backlog = await asyncio.to_thread(job.backlog)
        if backlog is not None:
            BACKLOG.set(backlog)


def _is_running(session: Session | None) -> tuple[bool, str]:
    if session is None or session.jvm_exit_code() is not None:
        return False, "the JVM of Spark has ended"
    return True, "counting"


def _cause(ended: asyncio.Task[None]) -> str:
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
