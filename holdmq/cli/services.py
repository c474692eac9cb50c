"""``holdmq registry | broker | gateway | stats | console``: one service in this process."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Final

import typer

from holdmq.cli.loading import uncollected
from holdmq.cli.options import CommandGroup, Given, Yes, confirm
from holdmq.errors import StartupError
from holdmq.service.process import run_service

MODULES: Final = {
    "registry": "registry.main",
    "broker": "broker.main",
    "gateway": "gateway.main",
    "stats": "spark_streaming.main",
    "console": "console.main",
}
"""Service → the module that has its ``main`` (or, for one that forks, ``run``)."""

_EXTRAS: Final = {"stats": "spark", "console": "console"}

_HELP: Final = {
    "registry": "Run the name service: brokers register there, clients ask it for routes.",
    "gateway": "Run the MQTT gateway: worker processes that share one port.",
    "stats": "Run the Spark job that counts messages per topic, second, minute and hour.",
}

_EXAMPLES: Final = {
    "registry": "holdmq registry --set registry.bind=10.0.0.5",
    "gateway": "holdmq gateway --set gateway.workers=4",
    "stats": "holdmq stats --once --set stats.data_dir=/var/lib/holdmq/stats",
}


_BACKUP_KEYS: Final = {"registry": "registry.accept_backup", "broker": "storage.accept_backup"}
"""Service → the key that lets it start with a .bak; its refusals name the flag."""

AcceptBackup = Annotated[
    bool,
    typer.Option("--accept-backup", help="Start with the .bak of a small file that is missing or damaged."),
]


def backup_sets(accept_backup: bool, names: Iterable[str]) -> list[str]:
    """Return the settings that ``--accept-backup`` stands for."""
    return [f"{_BACKUP_KEYS[name]}=true" for name in names if accept_backup and name in _BACKUP_KEYS]


def run(name: str, given: Given, sets: Iterable[str] = (), **how: bool) -> int:
    """Run the service `name` until it has drained and return its exit code; `how` goes to its ``main``."""
    config = given.configuration(*sets, *(["log.format=json"] if given.as_json else ()))
    module = _module(name)
    # What is loaded by now stays as long as the process: no collection looks at it again, even at the end.
    gc.freeze()
    if hasattr(module, "run"):
        code: int = module.run(config)
        return code
    return run_service(name, config, partial(module.main, **how))


def _module(name: str) -> Any:
    try:
        with uncollected():
            return importlib.import_module(MODULES[name])
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(name)
        if extra is None or (error.name or "").split(".")[0] in {"holdmq", MODULES[name].split(".")[0]}:
            raise
        raise StartupError(
            f"holdmq {name} needs the package {error.name}; install it: pip install 'holdmq[{extra}]'"
        ) from error


def register(app: CommandGroup, name: str) -> None:
    """Add the command of the service `name` to `app`."""
    command = _stats if name == "stats" else _command(name)
    app.add(name, example=_EXAMPLES[name], help=_HELP[name])(command)


def _command(name: str) -> Any:
    def command(given: Given) -> None:
        raise typer.Exit(run(name, given))

    def command_with_backup(given: Given, accept_backup: AcceptBackup = False) -> None:
        raise typer.Exit(run(name, given, backup_sets(accept_backup, [name])))

    return command_with_backup if name in _BACKUP_KEYS else command


def _stats(
    given: Given,
    once: Annotated[bool, typer.Option("--once", help="Count what is there by now, then end.")] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Put tables and checkpoints aside, and count the whole log anew."),
    ] = False,
    yes: Yes = False,
) -> None:
    if rebuild and not yes:
        confirm("Put the tables aside and count anew? Messages that retention removed are not counted then.")
    raise typer.Exit(run("stats", given, is_once=once, is_rebuild=rebuild))
