"""``holdmq message get | find | tail | replay``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from holdmq.cli.calls import first_of, run_calls
from holdmq.cli.options import CommandGroup, GivenTenant, print_json
from holdmq.cli.progress import counting
from holdmq.cli.shown import fields_of, name_of, say, write_line
from holdmq.cli.times import TIME_HELP, parse_time, show_time
from holdmq.config.model import Config
from holdmq.errors import UsageError

if TYPE_CHECKING:
    from holdmq.client.queries import Messages
    from holdmq.message import Message

T = TypeVar("T")

RESEND_MESSAGES: Final = 1_000
"""Messages sent again at a time: each batch is stored before the next is read."""

app = CommandGroup(
    "Messages in the log: by id, by key, the newest, or all since a time.", "holdmq message tail devices"
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The log's topic: an MQTT topic's first level.")]
Tag = Annotated[
    str | None,
    typer.Option("--tag", metavar="FILTER", help="Only messages with this tag; + and # as in MQTT."),
]


@app.add("get", example="holdmq message get 3f0c5a9d11e2b7640000000000001a2c")
def get(
    given: GivenTenant,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="32 hex digits, as `holdmq pub` prints.")],
) -> None:
    """Print one message with all that the log knows of it."""
    message = _run(given.configuration(), lambda messages: messages.get(message_id))
    if given.as_json:
        print_json(fields_of(message))
        return
    for name, value in fields_of(message).items():
        if name.startswith("body") or value in (None, [], {}):
            continue
        shown = f"{value} ({show_time(value)})" if name in ("born_ms", "store_ms") else value
        say(f"{name:16}{shown}")
    say("")
    write_line(bytes(message.body))


@app.add("find", example="holdmq message find orders --key 4711")
def find(
    given: GivenTenant,
    topic: Topic,
    key: Annotated[str, typer.Option("--key", help="A key that the messages were sent with.")] = "",
    unique_id: Annotated[str, typer.Option("--unique-id", help="The producer's own id of a message.")] = "",
    begin: Annotated[str | None, typer.Option("--from", metavar="TIME", help=f"Since: {TIME_HELP}.")] = None,
    end: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Until then.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="At most so many messages.")] = 100,
) -> None:
    """Find messages by a key or by their unique id, newest first. Exit code 1 when there is none."""
    if bool(key) == bool(unique_id):
        raise UsageError("give --key or --unique-id, and not both")
    now_ms = _now_ms()
    begin_ms = 0 if begin is None else parse_time(begin, now_ms)
    end_ms = None if end is None else parse_time(end, now_ms)
    found = _run(
        given.configuration(),
        lambda messages: _find(messages, topic, key, unique_id, begin_ms, end_ms, count),
    )
    for message in found:
        _show(message, given)
    if not found:
        raise typer.Exit(1)


@app.add("tail", example="holdmq message tail devices --tag '42/#' --count 20")
def tail(
    given: GivenTenant,
    topic: Topic,
    tag: Tag = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many messages.")] = 10,
) -> None:
    """Print the newest messages of a topic, the newest last; the topic is read backwards for it."""
    newest = _run(given.configuration(), lambda messages: first_of(messages.newest(topic, tag), count))
    for message in reversed(newest):
        _show(message, given)


@app.add("replay", example="holdmq message replay devices --from 2h --to devices-again")
def replay(
    given: GivenTenant,
    topic: Topic,
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help=f"Since: {TIME_HELP}.")],
    end: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Until then; now if not given.")
    ] = None,
    tag: Tag = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TOPIC", help="Send the messages to this topic, in place of printing them."
        ),
    ] = None,
) -> None:
    """Read a topic again from a time to now: print its messages, or send them to another topic.

    What is sent keeps its body, tag, keys, properties, and its order within a queue; otherwise it is new.
    """
    if target == topic:
        raise UsageError("--to must name another topic: its own would get every message twice")
    now_ms = _now_ms()
    begin_ms, end_ms = parse_time(begin, now_ms), None if end is None else parse_time(end, now_ms)

    async def work(messages: Messages) -> int:
        replayed = messages.replay(topic, begin_ms, end_ms, tag)
        if target is not None:
            return await _resend(messages, replayed, target)
        async for message in replayed:
            _show(message, given)
        return 0

    count = _run(given.configuration(), work)
    if target is not None:
        given.tell({"topic": target, "messages": count}, f"{count} messages of {topic} were sent to {target}")


async def _find(
    messages: Messages, topic: str, key: str, unique_id: str, begin_ms: int, end_ms: int | None, count: int
) -> list[Message]:
    found: list[Message] = []
    cursor: str | None = None
    while len(found) < count:
        page = await messages.find(
            topic,
            key,
            unique_id=unique_id,
            begin_ms=begin_ms,
            end_ms=end_ms,
            count=count - len(found),
            cursor=cursor,
        )
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            break
    return found


async def _resend(messages: Messages, replayed: AsyncIterable[Message], target: str) -> int:
    from holdmq.client.producer import Producer

    count = 0
    with counting("messages sent") as report:
        async with Producer(routes=messages.routes) as producer:
            while batch := await first_of(replayed, RESEND_MESSAGES):
                by_queue: dict[str, list[Message]] = {}
                for message in batch:
                    by_queue.setdefault(f"{message.broker}/{message.queue_id}", []).append(
                        _again(message, target)
                    )
                # One queue's messages go to one queue, whatever their keys: that keeps their order.
                for queue, own in by_queue.items():
                    await producer.send_batch(own, key=queue)
                count += len(batch)
                report(count)
    return count


def _run(config: Config, work: Callable[[Messages], Awaitable[T]]) -> T:
    from holdmq.client.queries import Messages

    return run_calls(config, Messages, work, tenant=config.client.tenant)


def _again(message: Message, topic: str) -> Message:
    """Return a message as new, for another topic."""
    from holdmq.message import Message

    return Message(
        topic,
        bytes(message.body),
        message.tag,
        message.keys,
        message.properties,
        message.flag,
        message.client_id,
    )


def _show(message: Message, given: GivenTenant) -> None:
    if given.as_json:
        print_json(fields_of(message))
    else:
        write_line(f"{show_time(message.store_ms)} {name_of(message)}", bytes(message.body))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
