"""``holdmq loadtest connect | publish | deliver | queue | compare``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdmq.cli.options import Asking, CommandGroup, Output, print_json
from holdmq.cli.progress import counting, steps_bar, waiting
from holdmq.errors import UsageError
from loadtest.gateway_memory import GatewayMemory
from loadtest.plan import ConnectPlan, FleetPlan, PublishPlan, parameters, parse_target

app = CommandGroup(
    "Load an MQTT server with a fleet of devices, or brokers with the SDK, and report what was seen.",
    "holdmq loadtest publish --devices 200 --seconds 10 --picture run.png",
)

HERE = "127.0.0.1:1883"

Target = Annotated[str, typer.Option("--target", metavar="HOST:PORT", help="The MQTT server.")]
Remote = Annotated[bool, typer.Option("--allow-remote", help="Load a server that is not this machine.")]
Devices = Annotated[int, typer.Option(min=1, help="Devices, each with a connection of its own.")]
PayloadBytes = Annotated[int, typer.Option("--payload-bytes", min=0, help="Size of a message.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="How long to publish.")]
Qos = Annotated[int, typer.Option(min=0, max=2, help="Quality of service.")]
Window = Annotated[int, typer.Option(min=1, max=65535, help="Unacknowledged messages per device.")]


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What every device of a fleet has in common."""

    target: Target = HERE
    allow_remote: Remote = False
    ramp_s: Annotated[
        float, typer.Option("--ramp-s", min=0, help="Seconds over which the devices connect.")
    ] = 1.0
    keep_alive_s: Annotated[
        int, typer.Option("--keep-alive-s", min=0, max=65535, help="MQTT keep alive; 0 = off.")
    ] = 60
    mqtt: Annotated[str, typer.Option("--mqtt", help="Protocol version: 3.1, 3.1.1 or 5.")] = "3.1.1"
    client_prefix: Annotated[str, typer.Option("--client-prefix", help="Client ids are PREFIX-NUMBER.")] = (
        "load"
    )
    username: Annotated[str | None, typer.Option(help="User name of every device.")] = None
    password: Annotated[
        str | None, typer.Option(envvar="HOLDMQ_LOADTEST_PASSWORD", help="Password; better in the variable.")
    ] = None

    def fleet(self, devices: int, **more: Any) -> FleetPlan:
        """Return the plan of so many devices. Raises UsageError."""
        host, port = parse_target(self.target, self.allow_remote)
        shared = (self.ramp_s, self.keep_alive_s, self.mqtt, self.client_prefix, self.username, self.password)
        return FleetPlan(host, port, devices, *shared, **more)


@dataclass(frozen=True, slots=True)
class ReportOptions(Output):
    """Where a report goes."""

    report: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the report as JSON.")] = None

    @property
    def console(self) -> Console:
        """Where people read: standard error if programs read standard output."""
        return Console(file=sys.stderr if self.as_json else sys.stdout)

    def say(self, shown: dict[str, Any]) -> None:
        """Print the parameters, first of all."""
        line = " ".join(f"{name}={value}" for name, value in shown.items() if value is not None)
        self.console.print(line, style="dim", highlight=False, soft_wrap=True)

    def publish(self, report: dict[str, Any], show: Callable[[dict[str, Any], Console], None]) -> None:
        """Write and print the report."""
        from loadtest import report as reports

        if self.report is not None:
            reports.write_json(report, self.report)
        if self.as_json:
            print_json(report)
        else:
            show(report, self.console)


@dataclass(frozen=True, slots=True)
class FleetRunOptions(ReportOptions):
    """How a fleet is run, and what is made of what it saw."""

    picture: Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw the report.")] = None
    processes: Annotated[
        int, typer.Option(min=0, max=64, help="Processes; 0 = as many as the limit of open files demands.")
    ] = 0


@app.add(
    "connect", example="holdmq loadtest connect --devices 10000 --ramp-s 10 --hold-s 30 --report run.json"
)
def connect(
    run: FleetRunOptions,
    device: DeviceOptions,
    devices: Devices = 1000,
    hold_s: Annotated[
        float, typer.Option("--hold-s", min=0, help="Seconds to stay, once all are in.")
    ] = 10.0,
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
) -> None:
    """Open idle connections, keep them, and tell how fast they were made, what failed, what each costs."""
    fleet = device.fleet(devices, client_id_bytes=client_id_bytes, expiry_s=expiry_s, subscribe=subscribe)
    _run(ConnectPlan(fleet, hold_s, admin), run)


@app.add(
    "publish", example="holdmq loadtest publish --devices 1000 --rate 5000 --seconds 30 --report run.json"
)
def publish(
    run: FleetRunOptions,
    device: DeviceOptions,
    devices: Devices = 100,
    topic: Annotated[str, typer.Option(help="{i} is the device's number.")] = "devices/{i}/telemetry",
    qos: Qos = 1,
    payload_bytes: PayloadBytes = 100,
    rate: Annotated[
        float, typer.Option(min=0, help="Messages per second of the fleet; 0 = full speed.")
    ] = 0.0,
    window: Window = 10,
    seconds: Seconds = 10.0,
    count: Annotated[int, typer.Option(min=0, help="Messages in all; 0 = what fits into the time.")] = 0,
) -> None:
    """Publish from a fleet, and tell throughput and the latency from PUBLISH to acknowledgement."""
    plan = PublishPlan(device.fleet(devices), topic, qos, payload_bytes, rate, window, seconds, count)
    _run(plan, run)


@app.add("deliver", example="holdmq loadtest deliver --publishers 10 --subscribers 10 --pairs --seconds 10")
def deliver(
    run: ReportOptions,
    target: Target = HERE,
    allow_remote: Remote = False,
    publishers: Annotated[int, typer.Option(min=1, help="Publishers, each with a topic of its own.")] = 1,
    subscribers: Annotated[int, typer.Option(min=1, help="Subscribers, at QoS 1.")] = 100,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="One subscriber for each publisher; else each takes all.")
    ] = False,
    rate: Annotated[float, typer.Option(min=0.1, help="Messages per second of each publisher.")] = 20.0,
    payload_bytes: Annotated[int, typer.Option("--payload-bytes", min=8, help="Size of a message.")] = 100,
    seconds: Seconds = 10.0,
) -> None:
    """Publish to subscribers, and tell what arrives and the latency from publisher to subscriber."""
    from loadtest import report as reports
    from loadtest.relay import Relay

    host, port = parse_target(target, allow_remote)
    if pairs and publishers != subscribers:
        raise UsageError(f"--pairs are as many publishers as subscribers, not {publishers} and {subscribers}")
    relay = Relay(publishers, subscribers, pairs, rate, seconds, payload_bytes)
    shown = {"target": f"{host}:{port}", **asdict(relay)}
    run.say(shown)
    with waiting("delivering"):
        found = relay.measure(f"{host}:{port}")
    report = {
        **reports.heading("deliver", shown),
        "deliveries": {**found._asdict(), "rate": found.came / found.seconds},
    }
    run.publish(report, reports.show_deliveries)
    _end(found.came == found.expected)


@app.add("queue", example="holdmq loadtest queue --messages 20000 --members 2")
def queue(
    given: Asking,
    messages: Annotated[int, typer.Option(min=1, help="Messages in all.")] = 20_000,
    payload_bytes: Annotated[int, typer.Option("--payload-bytes", min=12, help="Size of a message.")] = 100,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Messages of one batch.")] = 500,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=64, help="Batches on their way at a time.")
    ] = 4,
    members: Annotated[int, typer.Option(min=1, max=64, help="Members of the consumer group.")] = 2,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the report as JSON.")
    ] = None,
) -> None:
    """Produce and consume by the SDK, through a topic and a group of its own that are deleted afterwards."""
    import uvloop

    from holdmq.rpc.security import Security
    from loadtest import queue_run
    from loadtest import report as reports

    plan = queue_run.QueuePlan(messages, payload_bytes, batch, in_flight, members)
    plan.check()
    config = given.configuration()
    run = ReportOptions(given.as_json, report)
    run.say(asdict(plan))
    with counting("messages consumed") as progress:
        security, cluster = Security.of(config), config.client.cluster
        found = uvloop.run(queue_run.run(plan, config.registries(), security, progress, cluster))
    run.publish({**reports.heading("queue", asdict(plan)), "queue": found._asdict()}, reports.show_queue)
    _end(found.consumed == found.produced)


@app.add("compare", example="holdmq loadtest compare 127.0.0.1:1883 127.0.0.1:1884 --rounds 3 --seconds 5")
def compare(
    run: ReportOptions,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="HOST:PORT…", help="MQTT servers; rates are told beside the first's."),
    ],
    work: Annotated[
        Literal["publish", "deliver"],
        typer.Option("--work", help="publish = until acknowledged; deliver = to a subscriber each."),
    ] = "publish",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Measurements of each server, in turns.")] = 3,
    devices: Devices = 50,
    qos: Qos = 1,
    payload_bytes: Annotated[int, typer.Option("--payload-bytes", min=8, help="Size of a message.")] = 100,
    window: Window = 10,
    rate: Annotated[float, typer.Option(min=0.1, help="deliver: messages per second of each device.")] = 20.0,
    seconds: Seconds = 5.0,
    allow_remote: Remote = False,
) -> None:
    """Do the same at several servers in turns, so that a drift of the machine's speed meets all of them."""
    from loadtest import report as reports
    from loadtest.comparison import compare as measure_in_turns
    from loadtest.comparison import counted, delivering, publishing
    from loadtest.relay import Relay

    places = {
        f"{host}:{port}": (host, port) for host, port in (parse_target(t, allow_remote) for t in targets)
    }
    if len(places) < 2:
        raise UsageError("a comparison needs two servers, as 127.0.0.1:1883 127.0.0.1:1884")
    shown = {
        "work": work, "rounds": rounds, "devices": devices, "qos": qos, "payload_bytes": payload_bytes,
        "seconds": seconds, **({"window": window} if work == "publish" else {"rate": rate}),
    }  # fmt: skip
    run.say(shown)
    measures = {}
    for name, (host, port) in places.items():
        if work == "publish":
            fleet = FleetPlan(host, port, devices)
            plan = PublishPlan(fleet, qos=qos, payload_bytes=payload_bytes, window=window, seconds=seconds)
            plan.check()
            measures[name] = partial(publishing, plan)
        else:
            relay = Relay(devices, devices, True, rate, seconds, payload_bytes)
            measures[name] = partial(delivering, relay, name)
    done = 0
    with steps_bar("measurements", len(places) * (rounds + 1)) as progress:

        def told() -> None:
            nonlocal done
            done += 1
            progress(done)

        rows = measure_in_turns(rounds, {name: counted(each, told) for name, each in measures.items()})
    run.publish({**reports.heading("compare", shown), "servers": rows}, reports.show_comparison)
    _end(not any(row["failed"] for row in rows))


def _end(is_clean: bool) -> None:
    if not is_clean:
        raise typer.Exit(1)


def _run(plan: ConnectPlan | PublishPlan, run: FleetRunOptions) -> None:
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
    if run.picture is not None:
        drawing.check(run.picture)
    processes = min(run.processes or children.processes_needed(plan.fleet.devices), plan.fleet.devices)
    run.say({**parameters(plan), "processes": processes})
    memory = None
    if isinstance(plan, ConnectPlan) and plan.admin:
        memory = GatewayMemory(plan.admin)
    with _Bar(plan, run.console) as bar:

        def show(phase: str, counts: dict[str, int]) -> None:
            bar.show(phase, counts)
            if memory is not None and phase == "holding":
                memory.look()

        tally = children.run(plan, processes, show)
    report = reports.make(plan, tally, processes, None if memory is None else memory.found())
    if run.picture is not None:
        drawing.draw(report, run.picture)
    run.publish(report, reports.show)
    _end(reports.is_clean(report))


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
