"""What ``holdmq up --replicas N`` runs in place of one broker: N replicas of it, of which one leads.

The first one has the ports that the configuration says, each further one those `PORT_STEP` higher, and all of
them directories of their own beside ``storage.data_dir``. On one machine this survives a process or a
directory and shows a failover; what survives a machine is told by docs/replication.md.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Final, NamedTuple

from holdmq.cli.supervisor import POLL_TIMEOUT_S, ask_admin
from holdmq.cli.up_ports import Addresses, reachable
from holdmq.config.model import Config
from holdmq.config.replication import REPLICAS_MAX
from holdmq.errors import ConfigError, StartupError

REPLICAS_MIN: Final = 2
PORT_STEP: Final = 10
"""Between one port of two replicas: the ports of one broker are next to each other."""

_LEADS: Final = "holdmq_replication_is_leader 1"


class UpReplica(NamedTuple):
    """One replica, its ports and its directory."""

    id: str
    port: int
    replication_port: int
    admin_port: int
    data_dir: str

    @property
    def name(self) -> str:
        """What its process is called."""
        return f"broker-{self.id}"

    def settings(self) -> list[str]:
        """What only this one is told."""
        return [
            f"replication.replica={self.id}",
            f"broker.port={self.port}",
            f"replication.port={self.replication_port}",
            f"broker.admin_port={self.admin_port}",
            f"storage.data_dir={self.data_dir}",
        ]


class UpReplicas:
    """`count` replicas of the broker that `config` describes. Raises ConfigError when they cannot be."""

    def __init__(self, config: Config, count: int) -> None:
        _refuse(config, count)
        self._config = config
        self.all: list[UpReplica] = []
        for place in range(count):
            replica = chr(ord("a") + place)
            step = PORT_STEP * place
            self.all.append(
                UpReplica(
                    replica,
                    config.broker.port + step,
                    config.replication.port + step,
                    config.broker.admin_port + step,
                    f"{config.storage.data_dir}-{replica}",
                )
            )

    @property
    def has_own_etcd(self) -> bool:
        """Whether the configuration names no coordinator, so that an etcd is started beside them."""
        coordination = self._config.coordination
        return coordination.kind != "kubernetes" and not coordination.etcd.urls

    def settings(self) -> list[str]:
        """What every service is told."""
        config = self._config
        host = _bracketed(reachable(config.replication.bind))
        listed = ",".join(f"{each.id}={host}:{each.replication_port}" for each in self.all)
        found = [f"replication.replicas={listed}"]
        if config.coordination.kind == "none":
            found.append("coordination.kind=etcd")
        if len(self.all) == REPLICAS_MIN and config.source_of("replication.min_in_sync") == "default":
            # Else each of the two would stop all messages by its end.
            found.append("replication.min_in_sync=1")
        return found

    def addresses(self) -> Addresses:
        """Configuration key and replica → (host, port), but for the first one's."""
        config = self._config
        found: Addresses = {}
        for each in self.all[1:]:
            found |= {
                f"broker.port of replica {each.id}": (config.broker.bind, each.port),
                f"replication.port of replica {each.id}": (config.replication.bind, each.replication_port),
                f"broker.admin_port of replica {each.id}": (config.broker.admin_bind, each.admin_port),
            }
        return found

    def places(self) -> str:
        """Where clients reach the replicas, for people."""
        host = _bracketed(reachable(self._config.broker.bind))
        return ", ".join(f"{each.id} {host}:{each.port}" for each in self.all)

    def data(self) -> str:
        """Where their logs are, for people."""
        return ", ".join(each.data_dir for each in self.all)

    def refuse_other_data(self) -> None:
        """Raise StartupError when the log of a broker with one copy would be left behind; blocking."""
        single = Path(self._config.storage.data_dir)
        if _has_log(single) and not _has_log(Path(self.all[0].data_dir)):
            raise StartupError(
                f"{single} has the log of a broker with one copy: rename it to {self.all[0].data_dir}, and "
                "the other replicas get what it has; or choose another directory with --data DIR"
            )

    async def one_leads(self) -> tuple[bool, str]:
        """Ask the replicas once whether one of them leads and serves; if not, what each one says."""
        answers = await asyncio.gather(*map(self._state_of, self.all))
        if "" in answers:
            return True, ""
        return False, "; ".join(f"{each.id}: {said}" for each, said in zip(self.all, answers, strict=True))

    async def _state_of(self, replica: UpReplica) -> str:
        """What a replica says of itself; "" = it leads and serves."""
        host = reachable(self._config.broker.admin_bind)
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S / 2):
                _, metrics = await ask_admin(host, replica.admin_port, "/metrics")
                if any(line.startswith(_LEADS) for line in metrics.splitlines()):
                    return ""
                _, reason = await ask_admin(host, replica.admin_port, "/readyz")
        except TimeoutError:
            return "it does not answer"
        except OSError:
            return "it does not listen"
        return reason

    def advice(self, config_file: Path | None) -> str:
        """How to look at the replicas, for people."""
        words = ["holdmq", "replica", "list"]
        if config_file is not None:
            words += ["--config", str(config_file)]
        name = self._config.broker.name
        words += ["--set", self.settings()[0], "--set", f"broker.name={name}"]
        return f"the replicas of {name}: {shlex.join(words)}"


def refuse_left_replicas(config: Config) -> None:
    """Raise StartupError when a broker with one copy would be started beside replicas' logs; blocking."""
    single = Path(config.storage.data_dir)
    replica = Path(f"{single}-a")
    if not config.replication.replicas and _has_log(replica) and not _has_log(single):
        raise StartupError(
            f"{replica} is the log of a replica, and a broker with one copy would begin an empty one beside "
            "it: say --replicas N as before, or choose another directory with --data DIR"
        )


def _refuse(config: Config, count: int) -> None:
    if not REPLICAS_MIN <= count <= REPLICAS_MAX:
        raise ConfigError(f"--replicas takes {REPLICAS_MIN} to {REPLICAS_MAX}, not {count}")
    if config.replication.replicas:
        raise ConfigError(
            "replication.replicas is set, and --replicas names replicas of its own on this machine: "
            "leave one of them out"
        )
    if config.storage.engine != "log":
        raise ConfigError(
            f"--replicas is for the log engine, and storage.engine is {config.storage.engine}: its servers "
            "have copies of their own"
        )
    if config.broker.advertise:
        raise ConfigError(
            "broker.advertise names one address, and each replica has its own: leave it out with --replicas"
        )
    last = PORT_STEP * (count - 1)
    for key in ("broker.port", "replication.port", "broker.admin_port"):
        port = config.value_of(key)
        if port + last > 65_535:
            raise ConfigError(f"{key} is {port}, and the last replica's would be {port + last}: choose less")


def _has_log(directory: Path) -> bool:
    return (directory / "format.json").exists()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
