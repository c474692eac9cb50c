"""The section ``[replication]``: which replicas a broker has, and what they are to each other."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field, ValidationInfo, field_validator, model_validator

from holdmq.config.section import Port, Section

REPLICAS_MAX: Final = 7
_REPLICA: Final = re.compile(r"(?P<id>[A-Za-z0-9][A-Za-z0-9._-]{0,63})=(?P<address>[^\s=,]+:\d{1,5})")


class ReplicationSection(Section):
    """Copies of a broker on several machines: one leads, the others have what it has."""

    replicas: list[str] = Field(
        [],
        description="All replicas of this broker, as id=host:port of replication.port, the same list and "
        "order in each; the first one founds the shard. Empty = one copy, and no coordinator.",
    )
    replica: str = Field(
        "", description="Which of replication.replicas this process is, by its id; empty for one copy."
    )
    min_in_sync: int = Field(
        2,
        ge=1,
        le=REPLICAS_MAX,
        description="Copies that must have a message before it is acknowledged; with fewer in sync nothing "
        "is. 2 of 3 survives the loss of any machine; 1 is for two copies, with an alarm while one is left.",
    )
    bind: str = Field("127.0.0.1", description="Listening address of replicas' traffic: internal.")
    port: Port = Field(10912, description="Port at which the other replicas reach this one.")
    lag_ms: int = Field(
        3000,
        ge=100,
        le=600_000,
        description="A copy that is behind for so long is not waited for; shorter than clients wait.",
    )
    hold_ms: int = Field(
        500,
        ge=10,
        le=10_000,
        description="How long the leader holds a fetch with nothing to answer: several times per lag_ms, so "
        "that a silent copy is told from an idle leader.",
    )
    fetch_max_bytes: int = Field(
        1 << 20,
        ge=64 << 10,
        le=8 << 20,
        description="Bytes of one answer to a copy: enough for a disk's speed, and small beside the memory.",
    )
    catch_up_bytes_per_s: int = Field(
        128 << 20,
        ge=1 << 20,
        description="What all copies that read old files from the leader's disk get together: producers "
        "share that disk.",
    )
    far_reads_bytes: int = Field(
        0,
        ge=0,
        description="Who reads what lies further than this behind the log's end is sent to a copy in sync: "
        "the leader's memory stays for what comes. 0 = 40 % of storage.memory_limit_bytes: what a page "
        "cache has beside all else.",
    )
    switch_ms: int = Field(
        1000,
        ge=100,
        le=60_000,
        description="How long a switch-over may refuse records before it is given up.",
    )

    @field_validator("replicas")
    @classmethod
    def _names_replicas(cls, value: list[str]) -> list[str]:
        ids = []
        for text in value:
            found = _REPLICA.fullmatch(text)
            if found is None:
                raise ValueError(f"{text!r} is no id=host:port, the id of A-Z a-z 0-9 . _ -")
            ids.append(found["id"])
        if len(set(ids)) != len(ids):
            raise ValueError("a replica is named twice")
        if len(ids) == 1 or len(ids) > REPLICAS_MAX:
            raise ValueError(f"2 to {REPLICAS_MAX} replicas, or none at all")
        return value

    @field_validator("replica")
    @classmethod
    def _is_one_of_them(cls, value: str, info: ValidationInfo) -> str:
        known = [text.partition("=")[0] for text in info.data.get("replicas", [])]
        if value and known and value not in known:
            raise ValueError(f"replication.replicas has no replica {value!r}, but {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> ReplicationSection:
        if self.replicas and self.min_in_sync > len(self.replicas):
            raise ValueError(
                f"min_in_sync is {self.min_in_sync}, but there are {len(self.replicas)} replicas"
            )
        return self

    def addresses(self) -> dict[str, str]:
        """Return the address of each replica by its id, in their order; empty = one copy."""
        pairs = (text.partition("=") for text in self.replicas)
        return {replica: address for replica, _, address in pairs}
