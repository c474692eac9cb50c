"""The settings of consumer groups: what subscriptionGroup.json says, and the rules for changing it.

Pure: a change is planned on a copy of the table, written, and then taken as a whole. Source:
broker.md, Failure of a consumer (the names of the settings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdmq.errors import Code, RemoteError, StoreFormatError
from holdmq.names.topics import TEMPORARY_SUFFIX, group_fault
from holdmq.wire.group_headers import BROADCAST, MODES, GroupRow, GroupUpdateRequest

RETRY_QUEUES_MAX: Final = 64
"""Queues of a retry topic: far more than a group's failures need."""
RETRY_TIMES_MAX: Final = 1_000
DELAY_LEVELS_MAX: Final = 64
"""Levels of a group's own table: the broker's has 18."""
DELAY_LEVEL_MAX_MS: Final = 365 * 24 * 3_600_000

_FIELDS: Final = {
    "mode": "mode",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "retryQueueNums": "retry_queue_nums",
    "retryMaxTimes": "retry_max_times",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_consume_slowly",
    "pause": "is_paused",
    "delayLevelsMs": "delay_levels_ms",
}
"""Names in the file, and here."""


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """One group's settings. `mode` is that of its last first member, "" while nobody ever joined.

    `delay_levels_ms` () = the broker's table. `which_broker_when_consume_slowly`: which of the replicas in
    sync answers what is far behind, from 1 on, 0 = the leader does. `broker_id` is kept for others.
    """

    name: str
    mode: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    is_paused: bool = False
    delay_levels_ms: tuple[int, ...] = ()

    @property
    def is_temporary(self) -> bool:
        """Whether it saves nothing and goes with its last member."""
        return self.name.endswith(TEMPORARY_SUFFIX)

    def row(self, members: int) -> GroupRow:
        """The settings as the wire has them."""
        return GroupRow(
            self.name,
            self.mode,
            self.consume_enable,
            self.consume_from_min_enable,
            self.consume_broadcast_enable,
            self.retry_queue_nums,
            self.retry_max_times,
            self.broker_id,
            self.which_broker_when_consume_slowly,
            self.is_paused,
            list(self.delay_levels_ms),
            members,
        )

    def check_consumes(self, mode: str) -> None:
        """Raise GROUP_DISABLED unless members may consume in this mode."""
        if not self.consume_enable:
            raise RemoteError(Code.GROUP_DISABLED, f"group {self.name!r}: consumeEnable is off")
        if mode == BROADCAST and not self.consume_broadcast_enable:
            raise RemoteError(Code.GROUP_DISABLED, f"group {self.name!r}: consumeBroadcastEnable is off")


Groups = Mapping[str, GroupSetting]


def check_name(name: str) -> None:
    """Raise GROUP_INVALID unless a client may use this group name."""
    fault = group_fault(name)
    if fault is not None:
        raise RemoteError(Code.GROUP_INVALID, fault)


def check_mode(mode: str) -> None:
    """Raise KIND_UNFIT unless it is a mode."""
    if mode not in MODES:
        raise RemoteError(Code.KIND_UNFIT, f"mode {mode!r} is not one of {', '.join(sorted(MODES))}")


class GroupTable:
    """All groups that are kept. `data_version` rises with every change of the file.

    The `plan_` methods change a copy of `groups` and raise RemoteError when they must not; `take` makes the
    copy, once it is written, the table.
    """

    def __init__(self, groups_max: int, auto_create: bool) -> None:
        self.data_version = 0
        self.groups: dict[str, GroupSetting] = {}
        self._groups_max = groups_max
        self._auto_create = auto_create

    def reconfigure(self, groups_max: int, auto_create: bool) -> None:
        """Take other values of the broker's keys for groups; those that exist stay."""
        self._groups_max = groups_max
        self._auto_create = auto_create

    def take(self, groups: dict[str, GroupSetting]) -> None:
        """Groups were written: they are the table now."""
        self.groups = groups
        self.data_version += 1

    def plan_join(self, groups: dict[str, GroupSetting], name: str, mode: str) -> None:
        """The first member of a group, or of another mode, joins."""
        known = groups.get(name)
        if known is None:
            if not self._auto_create:
                raise RemoteError(
                    Code.GROUP_UNKNOWN,
                    f"group {name!r} does not exist and broker.auto_create_groups is off",
                )
            self._check_room(groups)
            known = GroupSetting(name)
        groups[name] = replace(known, mode=mode)

    def plan_create(self, groups: dict[str, GroupSetting], name: str) -> None:
        """A group without a member yet; one that exists stays as it is."""
        check_name(name)
        _check_kept(name)
        if name not in groups:
            self._check_room(groups)
            groups[name] = GroupSetting(name)

    def plan_update(self, groups: dict[str, GroupSetting], header: GroupUpdateRequest) -> None:
        """Create a group, or change the settings that are not None."""
        self.plan_create(groups, header.group)
        given = {
            name: getattr(header, name)
            for name in _FIELDS.values()
            if getattr(header, name, None) is not None
        }
        if "delay_levels_ms" in given:
            given["delay_levels_ms"] = tuple(given["delay_levels_ms"])
        changed = replace(groups[header.group], **given)
        fault = _fault(changed)
        if fault is not None:
            raise RemoteError(Code.GROUP_INVALID, f"group {header.group!r}: {fault}")
        groups[header.group] = changed

    def plan_pause(self, groups: dict[str, GroupSetting], name: str, pause: bool) -> None:
        """Pause or resume a group."""
        _check_kept(name)
        groups[name] = replace(_known(groups, name), is_paused=pause)

    def plan_delete(self, groups: dict[str, GroupSetting], name: str) -> None:
        """Plan a table without the group."""
        _known(groups, name)
        del groups[name]

    def plan_take_over(self, groups: dict[str, GroupSetting], name: str, settings: Mapping[str, Any]) -> None:
        """Have the settings that a group has at another broker; a mode of its own stays.

        Raises GROUP_INVALID for what cannot be a group.
        """
        check_name(name)
        _check_kept(name)
        try:
            taken = _group(name, dict(settings))
        except TypeError as error:
            raise RemoteError(Code.GROUP_INVALID, f"group {name!r}: {error}") from error
        known = groups.get(name)
        if known is None:
            self._check_room(groups)
        elif known.mode:
            taken = replace(taken, mode=known.mode)
        groups[name] = taken

    def content(self, groups: Groups) -> dict[str, Any]:
        """What subscriptionGroup.json holds for these groups."""
        return {name: self.row_content(group) for name, group in sorted(groups.items())}

    def row_content(self, group: GroupSetting) -> dict[str, Any]:
        """What the file holds for one group."""
        return {key: _plain(getattr(group, field)) for key, field in _FIELDS.items()}

    def load(self, content: dict[str, Any], data_version: int, path: str) -> None:
        """Fill the table from the file; StoreFormatError names the entry that is no group."""
        loaded: dict[str, GroupSetting] = {}
        for name, entry in content.items():
            try:
                loaded[name] = _group(name, entry)
            except TypeError as error:
                raise StoreFormatError(
                    f"the entry {name!r} is no group: {error}",
                    operation="read",
                    path=path,
                    hint="restore the file, or start once with its .bak (--accept-backup)",
                ) from error
        self.groups = loaded
        self.data_version = data_version

    def _check_room(self, groups: Groups) -> None:
        if len(groups) >= self._groups_max:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"broker.groups_max ({self._groups_max}) groups exist; delete some or raise it",
            )


def _known(groups: Groups, name: str) -> GroupSetting:
    group = groups.get(name)
    if group is None:
        raise RemoteError(Code.GROUP_UNKNOWN, f"group {name!r} does not exist here")
    return group


def _check_kept(name: str) -> None:
    if name.endswith(TEMPORARY_SUFFIX):
        raise RemoteError(
            Code.GROUP_INVALID, f"group {name!r} is temporary: it has no settings and goes with its members"
        )


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _group(name: str, entry: Any) -> GroupSetting:
    if not isinstance(entry, dict):
        raise TypeError("it is not an object")
    fault = group_fault(name)
    if fault is not None:
        raise TypeError(fault)
    given = {field: entry[key] for key, field in _FIELDS.items() if key in entry}
    levels = given.get("delay_levels_ms", [])
    if not isinstance(levels, list):
        raise TypeError("delayLevelsMs is no list")
    group = GroupSetting(name, **{**given, "delay_levels_ms": tuple(levels)})
    fault = _fault(group)
    if fault is not None:
        raise TypeError(fault)
    return group


def _fault(group: GroupSetting) -> str | None:
    """What is wrong with these settings; None = nothing."""
    switches = (
        group.consume_enable,
        group.consume_from_min_enable,
        group.consume_broadcast_enable,
        group.is_paused,
    )
    if not all(isinstance(switch, bool) for switch in switches):
        return "a switch is neither true nor false"
    if group.mode and group.mode not in MODES:
        return f"mode {group.mode!r} is not known to this version"
    ranges = (
        ("retryQueueNums", group.retry_queue_nums, 1, RETRY_QUEUES_MAX),
        ("retryMaxTimes", group.retry_max_times, 0, RETRY_TIMES_MAX),
        ("brokerId", group.broker_id, 0, 1_000),
        ("whichBrokerWhenConsumeSlowly", group.which_broker_when_consume_slowly, 0, 1_000),
        *(("a delay level", level, 1, DELAY_LEVEL_MAX_MS) for level in group.delay_levels_ms),
    )
    value: object
    for what, value, low, high in ranges:
        if type(value) is not int or not low <= value <= high:
            return f"{what} is {value!r}; {low} to {high} are possible"
    if len(group.delay_levels_ms) > DELAY_LEVELS_MAX:
        return f"{len(group.delay_levels_ms)} delay levels; {DELAY_LEVELS_MAX} are possible"
    return None
