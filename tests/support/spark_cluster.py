"""A standalone Spark cluster on this machine, started by the commands that docs/spark.md shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
from guides import examples_of
from processes import free_port, wait_until

from spark_streaming.job.worker_python import write_launcher

SLOW_S: Final = 300.0
"""How long JVMs may take to start, and a batch to be counted, on a machine that has much else to do."""
END_S: Final = 60.0
PAUSE_S: Final = 0.5

SMALL_JVM: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_DEFAULTS: Final = f"""\
spark.executor.extraJavaOptions {SMALL_JVM}
spark.driver.extraJavaOptions {SMALL_JVM}
spark.driver.memory 512m
# What stands still for a while is not dead; what dies is noticed by its connections.
spark.network.timeout 900s
spark.sql.codegen.wholeStage false
spark.ui.showConsoleProgress false
"""
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""


class SparkCluster:
    """A master and its workers, each with one core, and what is submitted to them."""

    def __init__(self, directory: Path, **defaults: object) -> None:
        """Start nothing; `defaults` are Spark's properties, with `_` for their dots."""
        self.directory = directory
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.pages = free_port()
        # As the page's Python, but its workers do not compile PySpark, again and again.
        self._python = write_launcher(directory)
        conf = directory / "conf"
        conf.mkdir()
        more = [f"{name.replace('_', '.')} {value}\n" for name, value in defaults.items()]
        (conf / "spark-defaults.conf").write_text(_DEFAULTS + "".join(more))
        (conf / "log4j2.properties").write_text(_LOG4J)
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_LOG_DIR": str(directory / "logs"),
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
        }

    def start(self, workers: int) -> None:
        """Start the master and `workers`, and wait until it has all of them."""
        self.run("master", "master.Master", f"--webui-port {self.pages}")
        for number in range(workers):
            options = "--host 127.0.0.1 --webui-port 0 --cores 1 --memory 1g"
            self.run(f"worker-{number}", "worker.Worker", options)

        def are_there() -> bool:
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, self.log(ended[0])
            try:
                return len(self.alive()) == workers
            except (OSError, json.JSONDecodeError):
                return False  # a page that is being made answers with nothing

        wait_long(are_there, "the master has its workers")

    def run(self, name: str, words: str, options: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """Start the page's command that has `words` as the process `name`, with `options` before its own."""
        script = [*self._lines("export "), f"exec {self._command(words, options)}"]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["bash", "-ec", "\n".join(script)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                env={**self.environment, **environment},
            )  # fmt: skip
        return self.processes[name]

    def log(self, name: str) -> str:
        """What a process wrote so far."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def alive(self) -> list[dict[str, Any]]:
        """The workers that the master counts on."""
        workers = get_json(self.pages, "/json/")["workers"]
        return [worker for worker in workers if worker["state"] == "ALIVE"]

    def executors(self) -> dict[str, psutil.Process]:
        """The executors that run, by the name of their worker."""
        found = {}
        for name in [name for name in self.processes if name.startswith("worker-")]:
            for process in descendants(self.processes[name].pid):
                if option_of(process, "--executor-id"):
                    found[name] = process
        return found

    def end(self) -> None:
        """End every process, and what it started."""
        below = [one for process in self.processes.values() for one in descendants(process.pid)]
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for one in below:
            # A stopped one, or one whose worker was killed, may still be there.
            with suppress(psutil.NoSuchProcess):
                one.kill()

    def _command(self, words: str, options: str) -> str:
        (line,) = [line for line in self._lines("$SPARK_HOME/", "holdmq stats") if words in line]
        before, dashes, after = line.partition(" --")
        return f"{before} {options}{dashes}{after}"

    def _lines(self, *beginnings: str) -> list[str]:
        """Commands of the page that begin so, with this machine's names in place of the page's."""
        here = {
            "/opt/holdmq/bin/python": str(self._python),
            "/var/tmp/spark": str(self.directory / "work"),
            "10.0.0.5": "127.0.0.1",
            "7077": str(self.port),
        }
        found = []
        for example in examples_of("spark.md", "console"):
            for line in example.code.replace("\\\n", "").splitlines():
                if line.startswith(tuple(f"$ {beginning}" for beginning in beginnings)):
                    for theirs, ours in here.items():
                        line = line.replace(theirs, ours)
                    found.append(line.removeprefix("$ "))
        return found


def wait_long(holds: Callable[[], bool], what: str) -> None:
    """As `wait_until`, for what takes seconds and costs something to look at."""

    def look() -> bool:
        time.sleep(PAUSE_S)
        return holds()

    wait_until(look, what, SLOW_S)


def get_json(port: int, path: str) -> Any:
    """What a page of Spark's answers as JSON; OSError while nobody does."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SLOW_S) as answer:
        return json.load(answer)


def descendants(pid: int) -> list[psutil.Process]:
    """The processes that it started, and that these did."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def option_of(process: psutil.Process, name: str) -> str:
    """The value of a process's option, "" without it."""
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
    return words[words.index(name) + 1] if name in words else ""


@contextmanager
def running_cluster(directory: Path, workers: int) -> Iterator[SparkCluster]:
    """A cluster with `workers`; all of it is ended, however what uses it ends."""
    cluster = SparkCluster(directory)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.end()
