"""One of two that share an installation wants ten times what its quota allows: what the other notices.

    python -m loadtest.bench.noisy_neighbour --quota 1000 --factor 10 --rate 200 --rounds 7

Starts registry, broker and a gateway with password file, access keys and a quota of `--quota` messages a
second for the loud one: for its access key with `sdk`, for its user with `mqtt` (a fleet of `--devices`). The
quiet one publishes `--rate` messages a second all the time, each when it is due, and measures until each is
acknowledged. In a quiet round the other is silent (or publishes `--beside` times its quota), in a noisy
one it tries to publish `--factor` times its quota, with two seconds' worth of that waiting. Rounds take
turns; told are both p99s of each, and the median of the ratios.

Exit code 1 if that is above `--ratio-max`, or the loud one got more than a tenth more than its quota.
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from holdmq.errors import StartupError
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.child import ChildProcess
from loadtest.figures import quantile
from loadtest.neighbours import MQTT, SDK, Neighbour, neighbour_process
from loadtest.peers import Services, holdmq_services

WARM_S: Final = 3.0
SETTLE_S: Final = 2.0
"""Before a round is measured: the loud one has used up its burst, or what it owed is paid."""
RATE_SPARE: Final = 1.1
"""What the loud one may get of its quota: a tenth more is within what is promised."""
QUIET_WAITING_MAX: Final = 20_000
LOUD: Final = "loud"
QUIET: Final = "quiet"


class Installation:
    """An installation with two access keys and two users, and its command line."""

    def __init__(self, directory: Path, stack: ExitStack, options: Options) -> None:
        self.secrets = {name: secrets.token_hex(24) for name in (LOUD, QUIET, "service", "admin")}
        self._directory = directory
        users = directory / "users"
        lines = "".join(f"{name}:{self.secrets[name]}\n" for name in (LOUD, QUIET))
        self._run("passwd", str(users), "--batch", stdin=lines)
        keys = directory / "keys.toml"
        keys.touch(0o600)
        keys.write_text("".join(map(self._key, self.secrets)))
        self.services: Services = stack.enter_context(
            holdmq_services(
                directory,
                f"gateway.workers={options.workers}",
                f"security.keys_file={keys}",
                f"access.password_file={users}",
                *self._as("service"),
                *options.set,
            )
        )
        self.holdmq("topic", "create", "shared")

    def holdmq(self, *words: str) -> None:
        """Run a command as an administrator."""
        flags = [f"registry.port={self.services.registry.rpartition(':')[2]}", *self._as("admin")]
        self._run(*words, *(part for setting in flags for part in ("--set", setting)))

    def _key(self, name: str) -> str:
        grants = {"service": 'roles = ["service", "broker"]', "admin": 'roles = ["admin"]'}
        what = grants.get(name, 'produce = ["shared"]')
        return f'[keys.{name}]\nsecret = "{self.secrets[name]}"\n{what}\n'

    def _as(self, name: str) -> list[str]:
        path = self._directory / f"{name}.secret"
        if not path.exists():
            path.touch(0o600)
            path.write_text(self.secrets[name])
        return [f"client.access_key={name}", f"client.secret_file={path}"]

    @staticmethod
    def _run(*words: str, stdin: str = "") -> None:
        done = subprocess.run(  # noqa: S603 # a list of ours, with nothing from outside
            [sys.executable, "-m", "holdmq.cli", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StartupError(f"holdmq {words[0]} {words[1]}: {done.stderr}")


def p99(latencies: list[float]) -> float:
    """The 99th percentile; StartupError when there is nothing to take it of."""
    if not latencies:
        raise StartupError("nothing of the quiet one was acknowledged in a round; choose longer rounds")
    return quantile(sorted(latencies), 0.99)


def measure_kind(kind: str, installation: Installation, options: Options) -> list[str]:
    """Rounds by turns with neighbours of one kind; returns what was not as it should be."""
    services = installation.services
    with ExitStack() as stack:

        def neighbour(name: str, clients: int, waiting_max: int) -> ChildProcess:
            address = services.registry if kind == SDK else services.address
            topic = "shared" if kind == SDK else f"{name}/data"
            own = Neighbour(
                kind, name, installation.secrets[name], address, topic, clients, options.size, waiting_max
            )
            child = ChildProcess(neighbour_process, own)
            stack.callback(child.end)
            child.told()
            return child

        quiet = neighbour(QUIET, options.quiet_devices, QUIET_WAITING_MAX)
        loud = neighbour(LOUD, options.devices, 2 * options.quota)
        whose = f"{'key' if kind == SDK else 'user'}:{LOUD}"
        installation.holdmq("quota", "set", whose, "--publish-rate", str(options.quota))
        quiet.tell((options.rate, WARM_S))
        quiet.told()
        p99s: dict[bool, list[float]] = {False: [], True: []}
        got: list[float] = []
        for _ in range(options.rounds):
            for is_noisy in (False, True):
                rate = options.quota * (options.factor if is_noisy else options.beside)
                if rate:
                    loud.tell((rate, options.seconds + SETTLE_S))
                quiet.tell((options.rate, SETTLE_S))
                quiet.told()
                quiet.tell((options.rate, options.seconds))
                p99s[is_noisy].append(p99(quiet.told()[0]))
                if rate:
                    stored, took_s = loud.told()
                    if is_noisy:
                        got.append(len(stored) / took_s)
        ratios = [noisy / calm for calm, noisy in zip(p99s[False], p99s[True], strict=True)]
        ratio = statistics.median(ratios)
        calm, noisy = statistics.median(p99s[False]), statistics.median(p99s[True])
        say(
            f"{kind}: p99 {calm:.2f} ms beside a quiet one, {noisy:.2f} ms beside a noisy one: x{ratio:.2f} "
            f"(rounds {' '.join(f'{one:.2f}' for one in ratios)})\n"
            f"  the noisy one wanted {options.quota * options.factor:,.0f}/s of its {options.quota:,}/s, "
            f"and got {statistics.median(got):,.0f}/s"
        )
        wrong = []
        if ratio > options.ratio_max:
            wrong.append(f"{kind}: the p99 beside a noisy neighbour is {ratio:.2f} times what it was")
        burst = options.quota / (options.seconds + SETTLE_S)
        if statistics.median(got) > options.quota * RATE_SPARE + burst:
            wrong.append(f"{kind}: the noisy one got {statistics.median(got):,.0f}/s")
        return wrong


def measure(options: Options, home: Path) -> list[str]:
    """Measure each kind with an installation of its own."""
    wrong: list[str] = []
    for kind in options.kinds:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=home))
            wrong += measure_kind(kind, Installation(Path(directory), stack, options), options)
    return wrong


def check(options: Options) -> str | None:
    """Return what is wrong with the options."""
    if options.rounds < 1 or options.seconds <= 0 or options.quota < 1:
        return "--rounds and --quota are at least 1, --seconds more than 0"
    return None


def main() -> int:
    """Measure; exit code 0, or 1 with what was not as it should be."""
    command = BenchCommand(
        __doc__,
        quota=(1_000, "msg/s that the loud one may publish"),
        factor=(10.0, "times its quota that the loud one wants in a noisy round"),
        beside=(0.0, "times its quota that it publishes in a quiet round"),
        rate=(200.0, "msg/s of the quiet one"),
        size=(100, "payload bytes"),
        devices=(50, "MQTT devices of the loud one"),
        quiet_devices=(10, "MQTT devices of the quiet one"),
        workers=(1, "gateway workers"),
        seconds=(8.0, "of a round"),
        rounds=7,
        ratio_max=1.2,
    )
    command.add("--kinds", nargs="+", choices=(SDK, MQTT), default=[SDK, MQTT])
    command.add_settings()
    return command.run(measure, check)


if __name__ == "__main__":
    sys.exit(main())
