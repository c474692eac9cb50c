"""``holdmq up``: registry, broker, gateway, Spark job and console on one machine, supervised.

For the key-value engine a Valkey, too, and for replicas an etcd, unless the configuration names one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from holdmq.cli import own_etcd, own_valkey
from holdmq.cli.options import CommandGroup, Given, print_json
from holdmq.cli.services import MODULES, AcceptBackup, backup_sets
from holdmq.cli.supervisor import ServiceCommand, ServiceSupervisor, ask_readyz
from holdmq.cli.up_keys import give_keys
from holdmq.cli.up_ports import addresses, reachable, refuse_conflicts, require_free_ports
from holdmq.cli.up_replicas import UpReplica, UpReplicas, refuse_left_replicas
from holdmq.cli.up_sign_in import SignIn, prepare_sign_in
from holdmq.config.model import Config
from holdmq.config.sources import env_name
from holdmq.errors import ConfigError, StartupError
from holdmq.files.disk import RealDisk
from holdmq.files.private_directory import make_private
from holdmq.names.visible_text import visible
from holdmq.service import telemetry
from holdmq.service.process import EXIT_OK

DATA_DIR: Final = "holdmq-data"
LOCK: Final = "up.lock"

_CORE: Final = ("registry", "broker", "gateway")
"""Without these no device's message moves; started in this order, each when the one before is ready."""

KV_URL: Final = "storage.kv.url"

_STOP_LIMIT_S: Final = 30.0
"""For a child to drain, beyond what its own drain key grants: a flush, a checkpoint, a Spark batch."""

_COLORS: Final = {
    "registry": 36,
    "broker": 33,
    "gateway": 32,
    "stats": 35,
    "console": 34,
    "valkey": 31,
    "etcd": 31,
    "up": 1,
}

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help=f"Directory of all data; ./{DATA_DIR} unless told."),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without", metavar="NAME", help="Leave out stats or console; repeat it.", show_default=False
    ),
]
Copies = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        metavar="N",
        help="Run N replicas of the broker, 2 to 7, and an etcd that says which one leads.",
        show_default=False,
    ),
]
EtcdProgram = Annotated[
    Path | None,
    typer.Option("--etcd", metavar="PATH", help="The etcd to start for --replicas; one of PATH unless told."),
]


def register(app: CommandGroup) -> None:
    """Add the command to `app`."""
    app.add("up", example="holdmq up --data ./holdmq-data --set gateway.port=1884")(up)


def up(
    given: Given,
    data: Data = None,
    without: Without = None,
    accept_backup: AcceptBackup = False,
    copies: Copies = None,
    etcd: EtcdProgram = None,
) -> None:
    """Run everything on this machine until Ctrl-C, and print where to look."""
    left_out = set(without or ())
    if not left_out <= {"stats", "console"}:
        wrong = ", ".join(sorted(left_out - {"stats", "console"}))
        raise ConfigError(f"--without takes stats or console, not {wrong}")
    placed = [*_data_sets(given.configuration(), data), *backup_sets(accept_backup, MODULES)]
    loaded = given.configuration(*placed)
    replicas = UpReplicas(loaded, copies) if copies is not None else None
    if etcd is not None and (replicas is None or not replicas.has_own_etcd):
        raise ConfigError("--etcd names the etcd to start for --replicas, and none is to be started")
    if replicas is not None:
        placed += replicas.settings()
        loaded = given.configuration(*placed)
    telemetry.setup("up", loaded.log)
    names = [name for name in MODULES if name not in left_out]
    root = data or Path(DATA_DIR)
    more = {} if replicas is None else replicas.addresses()
    refuse_conflicts(loaded, names, more)
    with locked(root):
        _require_directories(loaded, replicas)
        require_free_ports(loaded, names, more)
        if "stats" in names:
            _require_java()
        own: dict[str, list[str]] = {}
        if loaded.security.keys_file:
            own = give_keys(Path(loaded.security.keys_file), (root / "keys").absolute(), names)
        taken = {port for _, port in (addresses(loaded, names) | more).values()}
        servers: list[ServiceCommand] = []
        if replicas is not None and replicas.has_own_etcd:
            server, told = _etcd(root / own_etcd.NAME, etcd, taken)
            servers.append(server)
            placed += told
            loaded = given.configuration(*placed)
        sets = [*(given.sets or ()), *placed]
        children: list[ServiceCommand] = []
        for name in names:
            command = _child(name, loaded, given.config_file, [*sets, *own.get(name, ())])
            children += [command] if name != "broker" or replicas is None else _of_each(replicas, command)
        if loaded.storage.engine == "kv" and loaded.storage.kv.url is None:
            children, url = _with_valkey(children, root / own_valkey.NAME, loaded, taken)
            loaded = given.configuration(*placed, f"{KV_URL}={url}")
        where = places(loaded, names)
        told_last = ""
        if replicas is not None:
            where["broker"], where["data"] = replicas.places(), replicas.data()
            told_last = replicas.advice(given.config_file)
        raise typer.Exit(asyncio.run(_run([*servers, *children], loaded, where, told_last, given.as_json)))


def _data_sets(config: Config, data: Path | None) -> list[str]:
    """Return the settings that put all data below `data`, but for what ``--set`` places itself."""
    if data is None:
        return []
    return [
        f"{key}={data / name}"
        for key, name in (
            ("registry.data_dir", "registry"),
            ("storage.data_dir", "store"),
            ("stats.data_dir", "stats"),
            ("console.data_dir", "console"),
        )
        if config.source_of(key) != "--set"
    ]


def _require_directories(config: Config, replicas: UpReplicas | None) -> None:
    """Raise StartupError when a directory cannot be written, or has what would be left behind."""
    directories = [config.registry.data_dir, config.stats.data_dir]
    if replicas is not None:
        replicas.refuse_other_data()
        directories += [replica.data_dir for replica in replicas.all]
    elif config.storage.engine == "log":
        refuse_left_replicas(config)
        directories.append(config.storage.data_dir)
    for directory in directories:
        require_writable(Path(directory))


def require_writable(directory: Path) -> None:
    """Create `directory` if needed; raise StartupError when files cannot be made in it."""
    try:
        RealDisk().make_directory(directory, durable=False)
        with tempfile.TemporaryFile(dir=directory):
            return
    except OSError as error:
        raise StartupError(
            f"the data directory {directory} cannot be written: {error.strerror}; "
            "give it to this user, or choose another with --data DIR"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `directory` against a second ``holdmq up``; raise StartupError when one has it."""
    require_writable(directory)
    make_private(directory, LOCK)
    with open(directory / LOCK, "a+", encoding="ascii", opener=_unlinked) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise StartupError(
                f"another holdmq up (process {owner}) runs on {directory}; stop it, or give this one "
                "its own directory (--data) and ports (--set)"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _unlinked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _require_java() -> None:
    from spark_streaming.java import find_java_home

    try:
        find_java_home()
    except StartupError as error:
        raise StartupError(f"{error}; or run without analytics: --without stats") from error


def _child(name: str, config: Config, path: Path | None, sets: list[str]) -> ServiceCommand:
    argv = [sys.executable, "-P", "-m", "holdmq.cli", name]
    if path is not None:
        argv += ["--config", str(path)]
    style = "human" if telemetry.is_human(config.log, sys.stderr) else "json"
    for text in (*sets, f"log.format={style}"):
        argv += ["--set", text]
    section: Any = getattr(config, name)
    limit = _STOP_LIMIT_S + float(getattr(section, "drain_s", 0))
    is_core = name in _CORE
    return ServiceCommand(
        name,
        argv,
        partial(ask_readyz, reachable(section.admin_bind), section.admin_port),
        limit,
        essential=is_core,
        awaited=is_core,
    )


def _of_each(replicas: UpReplicas, broker: ServiceCommand) -> list[ServiceCommand]:
    """Return the command of each replica, all of them ready when one leads.

    What follows waits for that. None is essential: the others do without it.
    """

    def of(replica: UpReplica) -> ServiceCommand:
        argv = [*broker.argv, *(part for text in replica.settings() for part in ("--set", text))]
        return replace(
            broker,
            name=replica.name,
            argv=argv,
            ask_ready=replicas.one_leads,
            essential=False,
            awaited=replica is replicas.all[-1],
        )

    return [of(replica) for replica in replicas.all]


def _etcd(directory: Path, given: Path | None, taken: set[int]) -> tuple[ServiceCommand, list[str]]:
    """Return an etcd in `directory`, and what everybody is told of it."""
    program = own_etcd.etcd_program(given)
    own = own_etcd.own_etcd(directory, taken)
    return own_etcd.etcd_command(directory.absolute(), own, program, _STOP_LIMIT_S), own.settings()


def _with_valkey(
    children: list[ServiceCommand], directory: Path, config: Config, taken: set[int]
) -> tuple[list[ServiceCommand], str]:
    """Return the children with a Valkey before them that the broker stores in, and its address."""
    if config.storage.kv.min_replicas:
        raise ConfigError(
            f"storage.kv.min_replicas is {config.storage.kv.min_replicas}, and the Valkey that holdmq up "
            "starts has no replica: set it to 0, or name servers of yours in storage.kv.url"
        )
    url = own_valkey.own_url(directory, taken)
    valkey = own_valkey.valkey_command(directory.absolute(), url, config.storage, _STOP_LIMIT_S)
    # Not by --set: the command lines of processes are everybody's to see.
    secret = {env_name(KV_URL): url}
    told = [replace(child, environ=secret) if child.name == "broker" else child for child in children]
    return [valkey, *told], url


async def _run(
    children: list[ServiceCommand], config: Config, where: dict[str, str], told_last: str, as_json: bool
) -> int:
    """Start, watch and stop the children; return the exit code. `told_last` is one more sentence."""
    stopping = asyncio.Event()
    human = telemetry.is_human(config.log, sys.stderr)
    supervisor = ServiceSupervisor(_printer(human, [child.name for child in children]), stopping)
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        stopping.set()
        if interrupts > 1:
            supervisor.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt if number == signal.SIGINT else stopping.set)
    try:
        if await _start(supervisor, children, config, where, as_json):
            if told_last:
                _tell(as_json, "replicas", {"replicas": told_last}, told_last)
            await stopping.wait()
    finally:
        await supervisor.stop()
    if supervisor.refusal is not None:
        raise supervisor.refusal
    _tell(as_json, "stopped", {}, "stopped; everything acknowledged is in the log")
    return EXIT_OK


async def _start(
    supervisor: ServiceSupervisor,
    children: list[ServiceCommand],
    config: Config,
    where: dict[str, str],
    as_json: bool,
) -> bool:
    """Start the children by readiness and say what works; False when stopped before all are ready."""
    names = [child.name for child in children]
    sign_in: SignIn | None = None
    for child in children:
        if child.name == "console":
            # Before it makes the first account itself, and tells the password among all that is logged.
            sign_in = await asyncio.to_thread(prepare_sign_in, config.console)
        supervisor.start(child)
        # The Spark job takes seconds; nothing that follows needs it.
        if child.awaited and not await supervisor.wait_ready(child.name):
            return False
    if "stats" in names:
        mqtt = where["mqtt"]
        _tell(as_json, "mqtt-ready", {"mqtt": mqtt}, f"MQTT works at {mqtt}; Spark starts (about 10 s) …")
    is_ready = await supervisor.wait_ready(*names)
    if is_ready:
        _tell(as_json, "ready", where, "ready   " + "   ".join(f"{what} {at}" for what, at in where.items()))
    # A password that is not told now never is.
    if sign_in is not None and (is_ready or sign_in.password):
        url = where["console"]
        _tell(as_json, "sign-in", sign_in.facts(url), sign_in.sentence(url, config.console.data_dir))
    return is_ready


def places(config: Config, names: list[str]) -> dict[str, str]:
    """Return what a person wants to connect to → its address."""

    def at(name: str) -> str:
        section: Any = getattr(config, name)
        host = reachable(section.bind)
        return f"[{host}]:{section.port}" if ":" in host else f"{host}:{section.port}"

    where: dict[str, str] = {}
    for listener in config.gateway.all_listeners():
        name = f"mqtt-{listener.name}" if where else "mqtt"
        place = listener.model_copy(update={"bind": reachable(listener.bind)}).where
        where[name] = f"{listener.scheme}://{place}{listener.ws_path if listener.uses_websocket else ''}"
    if "console" in names:
        where["console"] = f"http://{at('console')}"
    where |= {"registry": at("registry"), "broker": at("broker")}
    is_kv = config.storage.engine == "kv"
    where |= {"kv": config.storage.kv.servers().where} if is_kv else {"data": config.storage.data_dir}
    return where


def _tell(as_json: bool, event: str, facts: dict[str, str], sentence: str) -> None:
    if as_json:
        print_json({"event": event, **facts})
        return
    sys.stdout.write(f"holdmq: {sentence}\n")
    sys.stdout.flush()


def _printer(human: bool, names: Sequence[str]) -> Any:
    """Return the function that shows a child's line: prefixed for people, as it is for programs."""
    width = max(map(len, names))
    colored = sys.stderr.isatty()

    def say(name: str, line: str) -> None:
        if human:
            # The service made visible what strangers chose; not so what a JVM writes that is on its way out.
            line = visible(line)
            prefix = f"{name:<{width}} |"
            sys.stderr.write(
                f"\x1b[{_COLORS[name.partition('-')[0]]}m{prefix}\x1b[0m {line}\n"
                if colored
                else f"{prefix} {line}\n"
            )
        elif name in ("up", own_valkey.NAME, own_etcd.NAME):  # which write no JSON by themselves
            telemetry.get_logger().warning(line if name == "up" else f"{name}: {line}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    return say
