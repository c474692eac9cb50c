"""Plug-ins of amqtt's interface that tests have at hand: slow, hanging, blocking, raising."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import jwt
from amqtt.contrib.jwt import UserAuthJwtPlugin
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin


class Gated(BaseAuthPlugin, BaseTopicPlugin):  # type: ignore[misc]
    """Answers when `gate` is open, by what `answers` says of a user or topic; counts what it is asked."""

    gate: ClassVar[threading.Event] = threading.Event()
    answers: ClassVar[dict[str, bool | None]] = {}
    asked: ClassVar[list[str]] = []

    @classmethod
    def reset(cls, is_open: bool = True, **answers: bool | None) -> None:
        cls.gate.set() if is_open else cls.gate.clear()
        cls.answers.clear()
        cls.answers.update(answers)
        cls.asked.clear()

    async def _answer(self, what: str | None) -> bool | None:
        self.asked.append(what or "")
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        return self.answers.get(what or "", True)

    async def authenticate(self, *, session: Any) -> bool | None:
        return await self._answer(session.username)

    async def topic_filtering(
        self, *, session: Any = None, topic: Any = None, action: Any = None
    ) -> bool | None:
        return await self._answer(f"{action.value} {topic}")

    @dataclass
    class Config:
        """Nothing to say."""


class TopicsOnly(Gated):
    """The same, of topics only."""

    async def authenticate(self, *, session: Any) -> bool | None:
        return None


class Hanging(BaseAuthPlugin):  # type: ignore[misc]
    """Never answers."""

    async def authenticate(self, *, session: Any) -> bool | None:
        await asyncio.sleep(3600)
        return True


class Blocking(BaseAuthPlugin):  # type: ignore[misc]
    """Blocks its thread until it is let go, for users whose name begins with `block`."""

    let_go: ClassVar[threading.Event] = threading.Event()

    async def authenticate(self, *, session: Any) -> bool | None:
        if (session.username or "").startswith("block"):
            self.let_go.wait(60)
        return True


class Raising(BaseAuthPlugin):  # type: ignore[misc]
    """Fails."""

    async def authenticate(self, *, session: Any) -> bool | None:
        raise RuntimeError("the data base is on fire")


class Sending(BaseAuthPlugin):  # type: ignore[misc]
    """Wants to tell everybody who comes."""

    async def authenticate(self, *, session: Any) -> bool | None:
        await self.context.broadcast_message("news", session.username.encode())
        return True


class Starting(BaseAuthPlugin):  # type: ignore[misc]
    """Wants to keep a message when it starts."""

    async def on_broker_post_start(self) -> None:
        await self.context.retain_message("news", b"I am here")


class Misfit(BaseAuthPlugin):  # type: ignore[misc]
    """Cannot be called as plug-ins are."""

    async def authenticate(self, *, connection: Any) -> bool | None:
        return bool(connection)


class Cancelling(BaseAuthPlugin):  # type: ignore[misc]
    """Waits for what it has cancelled."""

    async def authenticate(self, *, session: Any) -> bool | None:
        asked = asyncio.ensure_future(asyncio.sleep(3600, True))
        asked.cancel()
        return await asked


class Unmakeable(BaseAuthPlugin):  # type: ignore[misc]
    """Cannot be made while `is_broken`."""

    is_broken: ClassVar[bool] = True

    def __init__(self, context: Any) -> None:
        if self.is_broken:
            raise ConnectionError("no server at 192.0.2.1")
        super().__init__(context)


class Sleepy(BaseTopicPlugin):  # type: ignore[misc]
    """Allows every topic, the first ones slowly."""

    async def topic_filtering(self, *, session: Any = None, topic: Any = None, action: Any = None) -> bool:
        await asyncio.sleep(0.05 if topic.endswith("slow") else 0)
        return True


class NoCoroutine(BaseAuthPlugin):  # type: ignore[misc]
    """Not what is asked for."""

    def authenticate(self, *, session: Any) -> bool:
        time.sleep(0)
        return True


class OfTenant(BaseAuthPlugin):  # type: ignore[misc]
    """Admits everybody but file users, and says whose they are; `suffix` is put behind that."""

    tenants: ClassVar[dict[str, Any]] = {}

    @dataclass
    class Config:
        """What its tenants end with."""

        suffix: str = ""

    async def authenticate(self, *, session: Any) -> bool | None:
        tenant = self.tenants.get(session.username)
        session.tenant = tenant + self.context.config.suffix if isinstance(tenant, str) else tenant
        return True


class TokenOfTenant(UserAuthJwtPlugin):  # type: ignore[misc]
    """The plug-in of docs/access.md: a claim of the token, once that was checked, is the tenant."""

    async def authenticate(self, *, session: Any) -> bool | None:
        verdict: bool | None = await super().authenticate(session=session)
        if verdict:
            claims = jwt.decode(session.password, options={"verify_signature": False})
            session.tenant = claims.get("tenant")
        return verdict
