"""A tap on the RPC between gateways and a broker: every frame passes through it, as it is.

A test may keep a request back, keep its answer back, refuse it in the broker's place, or change an answer. It
works on frames, so what it sits between is what ships, compiled or not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import ONE_WAY, RESPONSE, Command
from holdmq.wire.frame import Buffer, FrameDecoder, encode_frame
from holdmq.wire.header import Header

FRAME_MAX_BYTES = 64 << 20
READ_BYTES = 1 << 20
H = TypeVar("H", bound=Header)


class HeldRequest:
    """A request that waits for the test: `pass_on` hands it to the broker, `answer` replies in its place."""

    def __init__(self, link: _Link, command: Command, body: memoryview) -> None:
        self.command = command
        self.body = body
        self._link = link

    def header(self, kind: type[H]) -> H:
        return kind.from_ext(self.command.ext_fields)

    def pass_on(self) -> None:
        self._link.to_broker(self.command, self.body)

    def reply(self, header: Header, body: Iterable[Buffer] = (), _body_length: int = 0) -> None:
        answer = Command(0, self.command.opaque, RESPONSE, "", header.to_ext())
        self._link.to_gateway(answer, b"".join(body))

    def push(self, code: RequestCode, header: Header) -> None:
        """Tell the gateway what it has not asked for."""
        self._link.to_gateway(Command(code, 0, ONE_WAY, "", header.to_ext()), b"")

    def refuse(self, error: HoldMQError) -> None:
        ext = error.ext_fields if isinstance(error, RemoteError) else {}
        remark = error.remark if isinstance(error, RemoteError) else str(error)
        self._link.to_gateway(Command(error.code, self.command.opaque, RESPONSE, remark, ext), b"")


def scripted(work: Callable[[HeldRequest], None]) -> Callable[[HeldRequest], bool]:
    """`in_place` of a broker that a test plays itself."""

    def handle(request: HeldRequest) -> bool:
        try:
            work(request)
        except HoldMQError as error:
            request.refuse(error)
        return True

    return handle


class Passage:
    """What becomes of the requests of one code.

    `refusals` answer the next ones in the broker's place, `refusal` all. While `holds` says so of a request
    it waits in `held`; while `holds_answers` is set the broker does it, and the answer waits in
    `held_answers`. `alters` change the headers of the next answers. `in_place` answers a request itself if it
    returns True.
    """

    def __init__(self) -> None:
        self.seen: list[Command] = []
        self.refusals: list[HoldMQError] = []
        self.refusal: HoldMQError | None = None
        self.holds: Callable[[Command], bool] = lambda _: False
        self.held: list[HeldRequest] = []
        self.holds_answers = False
        self.held_answers: list[Callable[[], None]] = []
        self.alters: list[Callable[[Command], None]] = []
        self.in_place: Callable[[HeldRequest], bool] = lambda _: False

    def hold(self) -> None:
        self.holds = lambda _: True

    def let_pass(self) -> None:
        """Hold nothing more; what is held stays so."""
        self.holds = lambda _: False
        self.holds_answers = False

    def release(self) -> None:
        """Hand on what waits, and hold nothing more."""
        self.let_pass()
        held, self.held = self.held, []
        for request in held:
            request.pass_on()
        answers, self.held_answers = self.held_answers, []
        for answer in answers:
            answer()

    def headers(self, kind: type[H]) -> list[H]:
        """The headers of the requests that came."""
        return [kind.from_ext(command.ext_fields) for command in self.seen]


class _Link:
    """One gateway's connection, and the tap's own behind it."""

    def __init__(self, tap: RpcTap, gateway: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._tap = tap
        self._gateway = gateway
        self._broker = broker
        self.is_deposed = False
        """Whether another copy leads now: everything is refused so."""
        self._pending: dict[int, Passage] = {}

    def to_broker(self, command: Command, body: Buffer) -> None:
        if not command.is_response and not command.is_one_way:
            self._pending[command.opaque] = self._tap[command.code]
        self._broker.write(b"".join(encode_frame(command, [body], len(body))))

    def to_gateway(self, command: Command, body: Buffer) -> None:
        self._gateway.write(b"".join(encode_frame(command, [body], len(body))))

    def asked(self, command: Command, body: memoryview) -> None:
        if command.is_response:
            self.to_broker(command, body)
            return
        passage = self._tap[command.code]
        passage.seen.append(command)
        request = HeldRequest(self, command, body)
        if self.is_deposed:
            request.refuse(RemoteError(Code.NOT_LEADER, "the lease ran out"))
        elif passage.refusals:
            request.refuse(passage.refusals.pop(0))
        elif passage.refusal is not None:
            request.refuse(passage.refusal)
        elif passage.holds(command):
            passage.held.append(request)
        elif not passage.in_place(request):
            self._tap.passed(self, command)
            request.pass_on()

    def answered(self, command: Command, body: memoryview) -> None:
        if self.is_deposed:
            return
        passage = self._pending.pop(command.opaque, None) if command.is_response else None
        if passage is None:
            self.to_gateway(command, body)
            return
        if passage.alters and not command.code:
            passage.alters.pop(0)(command)
        if passage.holds_answers:
            passage.held_answers.append(lambda: self.to_gateway(command, body))
        else:
            self.to_gateway(command, body)

    def cut(self) -> None:
        for writer in (self._gateway, self._broker):
            writer.transport.abort()


class RpcTap:
    """Listens in a broker's place; `tap[code]` is what becomes of the requests of that code."""

    def __init__(self, broker_port: Callable[[], int], passed: Callable[[object, Command], None]) -> None:
        self.port = 0
        self.passed = passed
        """Told of each request that goes on to the broker, and of the link that it came over."""
        self.links: set[_Link] = set()
        self._broker_port = broker_port
        self._passages: defaultdict[int, Passage] = defaultdict(Passage)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __getitem__(self, code: RequestCode | int) -> Passage:
        return self._passages[int(code)]

    async def listen(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=READ_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    def depose(self) -> None:
        """Another copy leads now: nobody gets in, and whatever is asked over an old connection is refused.

        `listen` again to be the new leader.
        """
        assert self._server is not None
        self._server.close()
        for link in self.links:
            link.is_deposed = True

    async def close(self) -> None:
        """Nobody gets in any more, and who is in is cut off."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        """Every connection is lost."""
        for link in list(self.links):
            link.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._broker_port())
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, writer, up_writer)
        self.links.add(link)
        back = asyncio.ensure_future(_pump(up_reader, link.answered))
        forth = asyncio.ensure_future(_pump(reader, link.asked))
        await asyncio.wait((back, forth), return_when=asyncio.FIRST_COMPLETED)
        self.links.discard(link)
        link.cut()
        await asyncio.wait((back, forth))
        for done in (back, forth):
            done.result()


async def _pump(reader: asyncio.StreamReader, took: Callable[[Command, memoryview], None]) -> None:
    decoder = FrameDecoder(FRAME_MAX_BYTES)
    while True:
        try:
            data = await reader.read(READ_BYTES)
        except ConnectionError:
            return
        if not data:
            return
        for command, body in decoder.receive_data(data):
            took(command, body)
