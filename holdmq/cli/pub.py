"""``holdmq pub``: send messages straight to the brokers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdmq.cli.options import CommandGroup, GivenTenant, print_json
from holdmq.cli.progress import counting
from holdmq.cli.shown import say
from holdmq.config.model import Config
from holdmq.errors import UsageError

if TYPE_CHECKING:
    from holdmq.client.lanes import SendResult

CHUNK_BYTES: Final = 65_536
"""Most that is read of standard input at a time: its lines are sent together."""


def register(app: CommandGroup) -> None:
    """Add the command to `app`."""
    app.add("pub", example="holdmq pub devices/42/temp -m 21.5")(pub)


def pub(
    given: GivenTenant,
    topic: Annotated[str, typer.Argument(help="MQTT topic; its first level is the log's topic.")],
    message: Annotated[str | None, typer.Option("-m", "--message", help="The message.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="A file that is the message; - is standard input.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="Messages with one key stay in order, in one queue.")
    ] = None,
) -> None:
    """Send one message, or one per line, and say where the log has it."""
    from holdmq.mqtt.filters import is_topic_name

    if not is_topic_name(topic):
        raise UsageError(f'"{topic}" is no MQTT topic name: it is empty, too long, or has + or # in it')
    batches = _batches(message, file, lines)
    count, last = asyncio.run(_send(given.configuration(), topic, batches, key, given.as_json))
    if not given.as_json and last is not None:
        what = "message is" if count == 1 else f"{count} messages are stored, the last"
        say(f"{what} in {last.queue} at offset {last.queue_offset}")


def _batches(message: str | None, file: Path | None, lines: bool) -> Iterator[list[bytes]]:
    """Return what to send, by the batch. Raises UsageError unless exactly one source is given."""
    if (message is not None) + (file is not None) + lines != 1:
        raise UsageError("give the message by exactly one of -m TEXT, -f FILE and --lines")
    if message is not None:
        return iter([[message.encode()]])
    if file is None:
        return _lines()
    try:
        return iter([[sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()]])
    except OSError as error:
        raise UsageError(f"the file {file} cannot be read: {error.strerror}") from error


def _lines() -> Iterator[list[bytes]]:
    """Yield the lines of standard input as they come: what is there is sent, not waited upon."""
    unfinished = b""
    while chunk := os.read(sys.stdin.fileno(), CHUNK_BYTES):
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if unfinished:
        yield [unfinished]


async def _send(
    config: Config, mqtt_topic: str, batches: Iterator[list[bytes]], key: str | None, as_json: bool
) -> tuple[int, SendResult | None]:
    """Send `batches`; return their count and where the last one is."""
    from holdmq.client.producer import Producer
    from holdmq.message import Message
    from holdmq.names.topics import split_mqtt_topic
    from holdmq.rpc.security import Security

    topic, tag = split_mqtt_topic(mqtt_topic)
    count, last = 0, None
    async with Producer(
        config.registries(),
        security=Security.of(config),
        cluster=config.client.cluster,
        tenant=config.client.tenant,
    ) as producer:
        with counting("messages stored") as report:
            # Standard input may be slow; the connections live on while it is waited for.
            while batch := await asyncio.to_thread(next, batches, None):
                results = await producer.send_batch([Message(topic, body, tag) for body in batch], key=key)
                count, last = count + len(results), results[-1]
                report(count)
                if as_json:
                    for result in results:
                        print_json(_fields(result))
    return count, last


def _fields(result: SendResult) -> dict[str, Any]:
    place = result.message_id
    return {
        **result.queue._asdict(),
        "queue_offset": result.queue_offset,
        "message_id": None if place is None else str(place),
    }
