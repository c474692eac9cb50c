"""Dead letters: what groups gave up, read, sent again, purged."""

from __future__ import annotations

import json
from typing import Final

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, ListQuery, Result
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from console.management.messages import BODY_SHOWN_MAX, MessageRow, message_row
from console.management.paging import part_of, wrong_cursor
from holdmq.client.dead_letters import DeadLetterCount, ReadLetter
from holdmq.errors import Code, OffsetError

PLACES_MAX: Final = 10_000
SORTS: Final = ("group", "messages", "resent")


class DeadLetterGroup(Answer):
    """How many dead letters a group has, and how many of them were sent again."""

    group: str
    messages: int
    resent: int


class DeadLetterGroups(Answer):
    """A part of the groups that have dead letters."""

    groups: list[DeadLetterGroup]
    total: int
    next: str | None


class LettersQuery(InputModel):
    """Which part of a group's dead letters."""

    limit: int = Field(50, ge=1, le=200)
    after: str = Field("", max_length=4096)


class LetterOrigin(Answer):
    """Where a group first read what it gave up."""

    topic: str
    queue_id: int
    offset: int


class LetterResentBy(Answer):
    """When a dead letter was sent again (null: not known any more), and by whom ("": nobody was named)."""

    at_ms: int | None
    by: str


class Letter(Answer):
    """A dead letter at a broker, and the message as the group got it; `resent` null: not sent again yet."""

    broker: str
    offset: int
    failed_ms: int
    origin: LetterOrigin | None
    resent: LetterResentBy | None
    message: MessageRow


class Letters(Answer):
    """A part of a group's dead letters, broker by broker, the oldest first; and how many there are in all."""

    letters: list[Letter]
    next: str | None
    messages: int
    resent: int


class LetterPlace(InputModel):
    """Where a dead letter is."""

    broker: str = Field(min_length=1, max_length=255)
    offset: int = Field(ge=0, le=(1 << 53) - 1)


class Resend(InputModel):
    """What to send again: null = all that was not yet; to `topic`, "" = the one that it came from."""

    places: list[LetterPlace] | None = Field(None, max_length=PLACES_MAX)
    topic: str = Field("", max_length=255)


class ResendFault(Answer):
    """A dead letter that could not be sent, and why."""

    broker: str
    offset: int
    reason: str


class ResendAnswer(Answer):
    """Sent now, sent before, and what could not be sent."""

    resent: int
    repeated: int
    failures: list[ResendFault]


class Purged(Answer):
    """How many dead letters are gone."""

    purged: int


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over dead letters."""
    letters = clients.letters

    async def list_(call: Call) -> Result:
        found = await letters.groups()
        rows = [{"group": name, **one._asdict()} for name, one in found.items()]
        part = part_of(rows, call.query, ("group",), SORTS)
        return DeadLetterGroups.model_validate(
            {"groups": part.rows, "total": part.total, "next": part.following}
        )

    async def read(call: Call) -> Result:
        query: LettersQuery = call.query
        after = _places_of(query.after)
        found: list[ReadLetter] = []
        is_more = False
        while True:
            try:
                async for letter in letters.read(call.path("group"), after):
                    if len(found) == query.limit:
                        is_more = True
                        break
                    found.append(letter)
                    after[letter.broker] = letter.offset
            except OffsetError as fault:
                # Nobody can read this one: the queue's text is broker/topic/id.
                after[fault.queue.partition("/")[0]] = fault.next_offset - 1
                continue
            break
        counts = (await letters.groups(call.path("group"))).get(call.path("group"), DeadLetterCount(0, 0))
        return Letters(
            letters=[_letter(letter) for letter in found],
            next=json.dumps(after) if is_more else None,
            messages=counts.messages,
            resent=counts.resent,
        )

    async def resend(call: Call) -> Result:
        asked: Resend = call.body
        places = None if asked.places is None else [(one.broker, one.offset) for one in asked.places]
        done = await letters.resend(call.path("group"), places, topic=asked.topic, by=call.caller.name)
        faults = [
            ResendFault(broker=broker, offset=fault.offset, reason=fault.remark or Code(fault.status).name)
            for broker, fault in done.failures
        ]
        return ResendAnswer(resent=done.resent, repeated=done.repeated, failures=faults)

    async def purge(call: Call) -> Result:
        return Purged(purged=await letters.purge(call.path("group")))

    one = "dead-letters/{group}"
    described = (
        "A group's dead letters; of each, when and by whom it was sent again (`resent`, null = not yet)."
    )
    return [
        Endpoint("GET", "dead-letters", Rank.VIEWER, list_, "Groups that have dead letters.",
                 DeadLetterGroups, ListQuery),
        Endpoint("GET", one, Rank.VIEWER, read, described, Letters, LettersQuery),
        Endpoint("POST", f"{one}/resend", Rank.OPERATOR, resend, "Send dead letters again.", ResendAnswer,
                 body=Resend),
        Endpoint("POST", f"{one}/purge", Rank.ADMIN, purge, "Give a group's dead letters up for good.",
                 Purged),
    ]  # fmt: skip


def _places_of(after: str) -> dict[str, int]:
    if not after:
        return {}
    try:
        places = json.loads(after)
    except (ValueError, RecursionError):
        raise wrong_cursor() from None
    if not isinstance(places, dict) or not all(
        type(offset) is int and -1 <= offset < 1 << 62 for offset in places.values()
    ):
        raise wrong_cursor()
    return places


def _letter(letter: ReadLetter) -> Letter:
    origin, resent = letter.origin, letter.resent
    return Letter(
        broker=letter.broker,
        offset=letter.offset,
        failed_ms=letter.failed_ms,
        origin=None
        if origin is None
        else LetterOrigin(topic=origin.topic, queue_id=origin.queue_id, offset=origin.offset),
        resent=None if resent is None else LetterResentBy(at_ms=resent.at_ms, by=resent.by),
        message=message_row(letter.message, BODY_SHOWN_MAX),
    )
