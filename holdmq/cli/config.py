"""``holdmq config keys | check | show | reload``."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
from pydantic import BaseModel, SecretStr
from rich.console import Console

from holdmq.cli.control import Admin, ask
from holdmq.cli.options import CommandGroup, Given, Output, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.shown import say
from holdmq.config.changes import RELOADED
from holdmq.config.model import Config
from holdmq.config.sources import reference, table_reference
from holdmq.errors import StartupError, UsageError
from holdmq.service.process import EXIT_FAILED
from holdmq.service.reloading import PATH

app = CommandGroup(
    "Configuration: the reference of all keys, a check, the values in force, taking over changes.",
    "holdmq config keys",
)


@app.add("keys", example="holdmq config keys --json")
def keys(output: Output) -> None:
    """Print every key with its type, default, unit, environment variable and meaning."""
    rows = [*reference(), *table_reference()]
    if output.as_json:
        print_json([row._asdict() for row in rows])
        return
    table = PlainTable("key", "default", "unit", "environment variable", "change", "meaning", show_lines=True)
    for row in rows:
        default = f"{shown(row.default)} ({', '.join(filter(None, (row.type, row.range)))})"
        table.add_row(row.key, default, row.unit, row.env, row.change, row.meaning)
    _console().print(table)


@app.add("check", example="holdmq config check --config holdmq.toml --set gateway.port=1884")
def check(given: Given) -> None:
    """Read the configuration, and say whether the services would accept it."""
    loaded = given.configuration()
    loaded.access.anonymous_allowed(loaded.gateway)
    if loaded.access.is_used:
        from gateway.access.checking import check_access

        check_access(loaded)
    loaded.console.check_exposure()
    loaded.alarms.check()
    if loaded.alarms.smtp_password_file or loaded.alarms.webhook_token_file:
        from holdmq.alarms.channels import refuse_open_secrets

        refuse_open_secrets(loaded.alarms)
    for section in ("registry", "broker"):
        loaded.rpc_anonymous_allowed(section)
    keys_set = [row.key for row in reference() if loaded.source_of(row.key) != "default"]
    given.tell(
        {"ok": True, "set": keys_set},
        f"the configuration is valid: {len(keys_set)} keys are set, the others have their defaults",
    )


@app.add("show", example="holdmq config show --config holdmq.toml > effective.toml")
def show(given: Given) -> None:
    """Print the values in force and where each comes from, as a TOML file that can be used again."""
    loaded = given.configuration()
    values = {row.key: (loaded.value_of(row.key), loaded.source_of(row.key)) for row in reference()}
    if given.as_json:
        # A secret's own text is asterisks.
        print_json(
            {key: {"value": plain(value), "source": source} for key, (value, source) in values.items()}
        )
        return
    section = ""
    for key, (value, source) in values.items():
        head, _, name = key.rpartition(".")
        if head != section:
            if section:
                say("")
            say(f"[{head}]")
            section = head
        note = "" if source == "default" else f"  # {source}"
        if isinstance(value, SecretStr):
            say(f"# {name} is set, and not shown{note}")
        else:
            say(f"# {name} is unset{note}" if value is None else f"{name} = {shown(value)}{note}")


@app.add("reload", example="holdmq config reload --broker broker-0")
def reload(
    given: Given,
    services: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERVICE]...",
            help="registry, broker, gateway, console; all that run here if none is named.",
            show_default=False,
        ),
    ] = None,
    admin: Admin = "",
    broker: Annotated[
        list[str] | None,
        typer.Option(
            "--broker", metavar="NAME", help="From afar: a broker, by its name.", show_default=False
        ),
    ] = None,
    gateway: Annotated[
        str,
        typer.Option(
            "--gateway",
            metavar="HOST",
            help="From afar: gateways whose host begins so, or a pattern; * = all.",
        ),
    ] = "",
    registry: Annotated[
        list[str] | None,
        typer.Option(
            "--registry", metavar="HOST:PORT", help="From afar: the registry there.", show_default=False
        ),
    ] = None,
) -> None:
    """Have running services read their configuration again; say what changed, and what needs a restart.

    Each reads the file, the environment and the --set that it was started with. One whose configuration is
    wrong changes nothing. Without options they are those of this machine; from afar it takes the role admin
    where there are access keys.
    """
    loaded = given.configuration()
    if broker or gateway or registry:
        if services or admin:
            raise UsageError("services are named here, or with --broker, --gateway and --registry: not both")
        _tell_reloads(given, _from_afar(loaded, broker or [], gateway, registry or []))
        return
    names = services or list(RELOADED)
    unknown = sorted(set(names) - set(RELOADED))
    if unknown:
        raise UsageError(f"{', '.join(unknown)} reads nothing again; {', '.join(RELOADED)} do")
    if admin and len(names) != 1:
        raise UsageError("--admin is the port of one process: name its service")
    results: list[dict[str, Any]] = []
    for name in names:
        try:
            (answer,) = ask(loaded, admin, "POST", PATH, name)
            results.append({"service": name, "changed": [], "waiting": [], "error": "", **answer})
        except UsageError as error:
            results.append({"service": name, "changed": [], "waiting": [], "error": str(error)})
        except StartupError:
            # Without names: what does not run here is no failure.
            if services:
                raise
    if not results:
        raise StartupError(
            "no service answers at its admin port on this machine; --admin HOST:PORT names another port"
        )
    _tell_reloads(given, results)


def _from_afar(
    config: Config, brokers: list[str], gateway: str, registries: list[str]
) -> list[dict[str, Any]]:
    from holdmq.client.configurations import ConfigAdmin, reload_registry
    from holdmq.rpc.security import Security

    security = Security.of(config)

    async def work() -> list[dict[str, Any]]:
        found = [(await reload_registry(address, security))._asdict() for address in registries]
        if brokers or gateway:
            async with ConfigAdmin(
                config.registries(), security=security, cluster=config.client.cluster
            ) as configurations:
                found += [(await configurations.reload_broker(name))._asdict() for name in brokers]
                if gateway:
                    answer = await configurations.reload_gateways(gateway)
                    found += [row._asdict() for row in answer.rows]
                    found += [
                        {
                            "service": "gateway",
                            "name": name,
                            "changed": [],
                            "waiting": [],
                            "error": "no answer",
                        }
                        for name in answer.silent
                    ]
        return found

    found = asyncio.run(work())
    if not found:
        raise StartupError(f"no gateway's host begins with {gateway!r}; `holdmq client list` shows some")
    return found


def _tell_reloads(given: Given, results: list[dict[str, Any]]) -> None:
    if given.as_json:
        print_json(results)
    else:
        for result in results:
            for line in _came_of(result):
                say(line)
    if any(result["error"] for result in results):
        raise typer.Exit(EXIT_FAILED)


def _came_of(result: dict[str, Any]) -> list[str]:
    name = " ".join(filter(None, (result["service"], result.get("name", ""))))
    if result["error"]:
        return [f"{name}: nothing was changed: {result['error']}"]
    changed, waiting = result["changed"], result["waiting"]
    lines = [f"{name}: changed: {', '.join(changed)}" if changed else f"{name}: nothing to change"]
    if waiting:
        lines.append(f"{name}: waits for a restart: {', '.join(waiting)}")
    return lines


def shown(value: Any) -> str:
    """Return `value` as TOML writes it; None, which TOML cannot say, as "unset"."""
    value = plain(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"[{', '.join(map(_inline_table, value))}]"
    # JSON's strings, numbers, booleans and arrays of them are TOML's too.
    return "unset" if value is None else json.dumps(value)


def plain(value: Any) -> Any:
    """Return tables in a list as dictionaries of what was set in them; anything else as it is."""
    if not isinstance(value, list):
        return value
    return [item.model_dump(exclude_unset=True) if isinstance(item, BaseModel) else item for item in value]


def _inline_table(table: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{_key(key)} = {_value(value)}" for key, value in table.items()) + " }"


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return _inline_table(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, default=str)


def _console() -> Console:
    console = Console()
    # Into a pipe nobody folds columns by hand: give the table the room that it needs.
    return console if console.is_terminal else Console(width=240)
