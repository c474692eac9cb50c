"""``holdmq sub``: print messages as they come, straight from the brokers."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from holdmq.cli.options import CommandGroup, GivenTenant, print_json
from holdmq.cli.shown import write_line
from holdmq.cli.times import TIME_HELP, parse_time
from holdmq.config.model import Config
from holdmq.errors import HoldMQError, UsageError

if TYPE_CHECKING:
    from holdmq.client.route import RouteTable
    from holdmq.message import Message

Start = Literal["earliest", "latest"] | int
"""An end of a topic, or a time in ms since 1970."""

REFRESH_S: Final = 1.0
"""How soon a topic that appears is found: a person waits for it, and few people do at a time."""


def register(app: CommandGroup) -> None:
    """Add the command to `app`."""
    app.add("sub", example="holdmq sub 'devices/#' --from earliest")(sub)


def sub(
    given: GivenTenant,
    mqtt_filter: Annotated[str, typer.Argument(metavar="FILTER", help="MQTT topic filter.")],
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help=f"Where to begin: earliest, latest, or {TIME_HELP}.")
    ] = "latest",
    count: Annotated[int, typer.Option("--count", min=0, help="End after so many messages; 0 = never.")] = 0,
) -> None:
    """Print every message that the filter matches, until Ctrl-C: its MQTT topic, then its body."""
    from holdmq.mqtt.filters import check_filter
    from holdmq.mqtt.reasons import MqttError

    try:
        check_filter(mqtt_filter)
    except MqttError as error:
        raise UsageError(str(error)) from error
    start = _start(begin)
    asyncio.run(_Subscription(mqtt_filter, start, count, given.as_json).run(given.configuration()))


def _start(text: str) -> Start:
    if text in ("earliest", "latest"):
        return cast("Start", text)
    try:
        return parse_time(text, time.time_ns() // 1_000_000)
    except UsageError as error:
        raise UsageError(f"--from {text}: earliest, latest, or a time; {error}") from None


class _Subscription:
    """A consumer per topic that can match, all printing to one output."""

    def __init__(self, mqtt_filter: str, start: Start, count: int, as_json: bool) -> None:
        self._filter = mqtt_filter
        self._start: Start = start
        self._left = count or -1
        self._as_json = as_json
        self._done = asyncio.Event()
        self._readers: dict[str, asyncio.Task[None]] = {}

    async def run(self, config: Config) -> None:
        """Read until enough was printed or a signal came. Raises HoldMQError."""
        from holdmq.client.route import RouteTable
        from holdmq.rpc.security import Security

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._done.set)
        reads_all = self._filter.partition("/")[0] in ("+", "#")
        routes = RouteTable(
            config.registries(),
            f"holdmq-sub-{os.getpid()}",
            follow_all=True,  # rules of gateways may store what is wanted in topics that we do not know
            refresh_s=REFRESH_S,
            security=Security.of(config),
            cluster=config.client.cluster,
            tenant=config.client.tenant,
        )
        routes.start()
        try:
            await routes.refresh()
            async with asyncio.TaskGroup() as tasks:
                self._begin(tasks, routes, reads_all)
                await self._done.wait()
                for reader in self._readers.values():
                    reader.cancel()
        except BaseExceptionGroup as group:
            # Not `except*`: what is raised in one comes out in a group again, which nobody above knows.
            failed, other = group.split(HoldMQError)
            if failed is None or other is not None:
                raise
            raise _first(failed) from None
        finally:
            await routes.close()

    def _begin(self, tasks: asyncio.TaskGroup, routes: RouteTable, reads_all: bool) -> None:
        from holdmq.client.tables import KIND_TABLE
        from holdmq.names.topics import OTHER_TOPIC, is_whole, join_mqtt_topic, topic_of_filter

        def read(topic: str, start: Start) -> None:
            route = routes.get(topic)
            is_table = route is not None and route.kind == KIND_TABLE
            visible = not is_table and (join_mqtt_topic(topic, "") is not None or is_whole(topic))
            if visible and topic not in self._readers and not self._done.is_set():
                self._readers[topic] = tasks.create_task(self._read(routes, topic, start))

        def appeared(topics: frozenset[str]) -> None:
            for topic in topics:
                if reads_all or is_whole(topic):
                    # A topic that appears later is new to us from its first message on.
                    read(topic, "earliest")

        read(OTHER_TOPIC, self._start)
        named = topic_of_filter(self._filter)
        if named is not None:
            read(named, self._start)
        for route in routes.all():
            if reads_all or is_whole(route.topic):
                read(route.topic, self._start)
        routes.on_routes.append(appeared)

    async def _read(self, routes: RouteTable, topic: str, start: Start) -> None:
        from holdmq.client.pull_consumer import PullConsumer
        from holdmq.client.queries import Messages
        from holdmq.names.topics import is_whole

        tag_filter = self._filter if is_whole(topic) else self._filter.partition("/")[2]
        # Without a second level in the filter the tag must be absent, which no tag filter says.
        async with PullConsumer(routes=routes, tag_filter=tag_filter or None) as consumer:
            await consumer.assign([topic], "earliest" if isinstance(start, int) else start)
            if isinstance(start, int) and routes.get(topic) is not None:
                at_time = await Messages(routes=routes).offsets_at(topic, start)
                for queue in consumer.positions().keys() & at_time.keys():
                    await consumer.seek(queue, at_time[queue].offset, at_time[queue].log_epoch)
            while not self._done.is_set():
                for message in await consumer.poll():
                    self._take(message)

    def _take(self, message: Message) -> None:
        """Print `message` if the filter matches its MQTT topic and more are wanted."""
        from holdmq.mqtt.filters import matches
        from holdmq.names.topics import join_mqtt_topic

        mqtt_topic = join_mqtt_topic(message.topic, message.tag)
        if mqtt_topic is None or not matches(self._filter, mqtt_topic) or self._left == 0:
            return
        if self._as_json:
            print_json(_fields(message, mqtt_topic))
        else:
            write_line(mqtt_topic, bytes(message.body))
        self._left -= 1
        if self._left == 0:
            self._done.set()


def _fields(message: Message, mqtt_topic: str) -> dict[str, Any]:
    """Return what a program wants to know; `body` is text, or `body_base64` what is no UTF-8."""
    body = bytes(message.body)
    try:
        content = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode()}
    return {
        "mqtt_topic": mqtt_topic,
        **content,
        "broker": message.broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "store_ms": message.store_ms,
        "message_id": None if message.message_id is None else str(message.message_id),
    }


def _first(group: BaseExceptionGroup[HoldMQError]) -> HoldMQError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast(HoldMQError, error)
