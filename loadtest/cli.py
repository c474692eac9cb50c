"""``holdmq loadtest connect | publish``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdmq.errors import UsageError
from loadtest.gateway_memory import GatewayMemory
from loadtest.plan import ConnectPlan, FleetPlan, PublishPlan, parameters, parse_target

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Load an MQTT server with a fleet of devices, and report what they saw.",
    epilog="Example: holdmq loadtest publish --devices 200 --seconds 10 --picture run.png",
)

Target = Annotated[str, typer.Option("--target", metavar="HOST:PORT", help="The MQTT server.")]
Remote = Annotated[bool, typer.Option("--allow-remote", help="Load a server that is not this machine.")]
Devices = Annotated[int, typer.Option(min=1, help="Devices, each with a connection of its own.")]
Ramp = Annotated[float, typer.Option("--ramp-s", min=0, help="Seconds over which the devices connect.")]
KeepAlive = Annotated[int, typer.Option("--keep-alive-s", min=0, max=65535, help="MQTT keep alive; 0 = off.")]
Mqtt = Annotated[str, typer.Option("--mqtt", help="Protocol version: 3.1, 3.1.1 or 5.")]
Prefix = Annotated[str, typer.Option("--client-prefix", help="Client ids are PREFIX-NUMBER.")]
User = Annotated[str | None, typer.Option(help="User name of every device.")]
Password = Annotated[
    str | None, typer.Option(envvar="HOLDMQ_LOADTEST_PASSWORD", help="Password; better in the variable.")
]
Processes = Annotated[
    int, typer.Option(min=0, max=64, help="Processes; 0 = as many as the limit of open files demands.")
]
Report = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the report as JSON.")]
Picture = Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw the report.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON, for programs.")]


@app.callback()
def root() -> None:
    """Load an MQTT server with a fleet of devices, and report what they saw."""


@app.command(epilog="Example: holdmq loadtest connect --devices 10000 --ramp-s 10 --hold-s 30")
def connect(
    target: Target = "127.0.0.1:1883",
    devices: Devices = 1000,
    ramp_s: Ramp = 1.0,
    hold_s: Annotated[
        float, typer.Option("--hold-s", min=0, help="Seconds to stay, once all are in.")
    ] = 10.0,
    keep_alive_s: KeepAlive = 60,
    mqtt: Mqtt = "3.1.1",
    client_prefix: Prefix = "load",
    client_id_bytes: Annotated[
        int, typer.Option("--client-id-bytes", min=0, max=65_535, help="Length of client ids; 0 = short.")
    ] = 0,
    expiry_s: Annotated[
        int, typer.Option("--expiry-s", min=0, help="Seconds that sessions outlive their connections.")
    ] = 0,
    subscribe: Annotated[
        str, typer.Option("--subscribe", metavar="FILTER", help="Subscribe; {i} is the device's number.")
    ] = "",
    admin: Annotated[
        str, typer.Option("--admin", metavar="HOST:PORT", help="The gateway's admin port: tell its memory.")
    ] = "",
    username: User = None,
    password: Password = None,
    processes: Processes = 0,
    allow_remote: Remote = False,
    report: Report = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Open idle connections, keep them, and tell how fast they were made, what failed, what each costs."""
    host, port = parse_target(target, allow_remote)
    fleet = FleetPlan(
        host,
        port,
        devices,
        ramp_s,
        keep_alive_s,
        mqtt,
        client_prefix,
        username,
        password,
        client_id_bytes=client_id_bytes,
        expiry_s=expiry_s,
        subscribe=subscribe,
    )
    _run(ConnectPlan(fleet, hold_s, admin), processes, report, picture, as_json)


@app.command(
    epilog="Example: holdmq loadtest publish --devices 1000 --rate 5000 --seconds 30 --report run.json"
)
def publish(
    target: Target = "127.0.0.1:1883",
    devices: Devices = 100,
    ramp_s: Ramp = 1.0,
    topic: Annotated[str, typer.Option(help="{i} is the device's number.")] = "devices/{i}/telemetry",
    qos: Annotated[int, typer.Option(min=0, max=2, help="Quality of service.")] = 1,
    payload_bytes: Annotated[int, typer.Option("--payload-bytes", min=0, help="Size of a message.")] = 100,
    rate: Annotated[
        float, typer.Option(min=0, help="Messages per second of the fleet; 0 = full speed.")
    ] = 0.0,
    window: Annotated[int, typer.Option(min=1, max=65535, help="Unacknowledged messages per device.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to publish.")] = 10.0,
    count: Annotated[int, typer.Option(min=0, help="Messages in all; 0 = what fits into the time.")] = 0,
    keep_alive_s: KeepAlive = 60,
    mqtt: Mqtt = "3.1.1",
    client_prefix: Prefix = "load",
    username: User = None,
    password: Password = None,
    processes: Processes = 0,
    allow_remote: Remote = False,
    report: Report = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Publish from a fleet, and tell throughput and the latency from PUBLISH to acknowledgement."""
    host, port = parse_target(target, allow_remote)
    fleet = FleetPlan(host, port, devices, ramp_s, keep_alive_s, mqtt, client_prefix, username, password)
    plan = PublishPlan(fleet, topic, qos, payload_bytes, rate, window, seconds, count)
    _run(plan, processes, report, picture, as_json)


def _run(
    plan: ConnectPlan | PublishPlan, processes: int, file: Path | None, picture: Path | None, as_json: bool
) -> None:
    # Heavy libraries, and only here: the command line must be quick for everybody else.
    try:
        from loadtest import picture as drawing
        from loadtest import processes as children
        from loadtest import report as reports
    except ModuleNotFoundError as error:
        raise UsageError(
            f"holdmq loadtest needs the package {error.name}; install it: pip install 'holdmq[loadtest]'"
        ) from error
    plan.check()
    if picture is not None:
        drawing.check(picture)
    processes = min(processes or children.processes_needed(plan.fleet.devices), plan.fleet.devices)
    console = Console(file=sys.stderr if as_json else sys.stdout)
    console.print(_line(plan, processes), style="dim", highlight=False, soft_wrap=True)
    memory = None
    if isinstance(plan, ConnectPlan) and plan.admin:
        memory = GatewayMemory(plan.admin)
    with _Bar(plan, console) as bar:

        def show(phase: str, counts: dict[str, int]) -> None:
            bar.show(phase, counts)
            if memory is not None and phase == "holding":
                memory.look()

        tally = children.run(plan, processes, show)
    report = reports.make(plan, tally, processes, None if memory is None else memory.found())
    if file is not None:
        reports.write_json(report, file)
    if picture is not None:
        drawing.draw(report, picture)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        reports.show(report, console)
    if not reports.is_clean(report):
        raise typer.Exit(1)


def _line(plan: ConnectPlan | PublishPlan, processes: int) -> str:
    shown = {**parameters(plan), "processes": processes}
    return " ".join(f"{name}={value}" for name, value in shown.items() if value is not None)


class _Bar:
    """The progress of one run: a bar per phase that has an end."""

    def __init__(self, plan: ConnectPlan | PublishPlan, console: Console) -> None:
        self._plan = plan
        self._progress = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            # Lines that overwrite each other are for terminals alone.
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, phase: str, counts: dict[str, int]) -> None:
        """Take the newest counts of all processes."""
        total, done, text = self._state(phase, counts)
        task = self._tasks.get(phase)
        if task is None:
            task = self._tasks[phase] = self._progress.add_task(phase, total=total, text=text)
        self._progress.update(task, total=total, completed=done, text=text)

    def _state(self, phase: str, counts: dict[str, int]) -> tuple[float | None, float, str]:
        plan = self._plan
        if phase == "connecting":
            reached = counts["connected"] + counts["failed"]
            return plan.fleet.devices, reached, f"{counts['connected']:,} connected"
        task = self._tasks.get(phase)
        elapsed = self._progress.tasks[task].elapsed or 0.0 if task is not None else 0.0
        if isinstance(plan, ConnectPlan):
            return plan.hold_s, elapsed, f"{counts['connected']:,} connected"
        done = counts["acknowledged"] if plan.qos else counts["sent"]
        text = f"{done:,} messages"
        return (plan.count, done, text) if plan.count else (plan.seconds, elapsed, text)
