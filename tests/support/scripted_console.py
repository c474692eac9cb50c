"""A console whose API says what a test wants it to: the real pages, over answers that are written down here.

It stands beside the walks over real installations: here each page has every kind of row at once, an API that
refuses is one line, and no cluster is started. `said` are the orders that the pages gave.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import uvicorn
from processes import free_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from console.api.http import SECURITY_HEADERS
from console.api.page_files import PageFiles
from console.app import STATIC

API: Final = "/api/v1"
TOPICS: Final = [f"plant-{n:03}" for n in range(120)]
ODD_NAME: Final = "<img src=x onerror=alert(1)>"
BODIES: Final = (b'{"temperature": 21.5, "unit": "C"}', b"hello <b>world</b>", bytes(range(64)), b"")


def topic_row(name: str) -> dict[str, Any]:
    number = sum(name.encode())
    return {
        "topic": name,
        "kind": "table" if name.endswith("7") else "log",
        "read_queues": 2,
        "write_queues": 2,
        "brokers": ["broker-0"],
        "messages_in": number * 1000,
        "bytes_in": number * 100_000,
        "messages_out": number * 900,
        "bytes_out": number * 90_000,
        "messages_replayed": number * 100,
        "bytes_replayed": number * 10_000,
        "messages_stored": number * 10,
        "perm": "r" if name.endswith("5") else "rw",
        "order": name.endswith("3"),
        "retention_ms": 43_200_000 if name.endswith("2") else 0,
        "is_paused": name.endswith("9"),
    }


def message_row(number: int) -> dict[str, Any]:
    body = BODIES[number % len(BODIES)]
    return {
        "message_id": f"{number:032x}",
        "topic": "plant-000",
        "tag": f"north/{number}/temp",
        "keys": [f"order-{number}"],
        "unique_id": f"unique-{number}",
        "born_ms": 1_790_000_000_000 - number * 1000,
        "store_ms": 1_790_000_000_007 - number * 1000,
        "broker": "broker-0",
        "queue_id": number % 2,
        "offset": number,
        "properties": {"content-type": "application/json", "odd": ODD_NAME},
        "size": len(body),
        "body_base64": base64.b64encode(body).decode(),
        "client_id": ODD_NAME,
        "reconsume_times": 16,
        "is_cut": False,
    }


def letter_row(number: int) -> dict[str, Any]:
    return {
        "broker": "broker-0",
        "offset": number,
        "failed_ms": 1_790_000_000_000,
        "origin": {"topic": "plant-000", "queue_id": 0, "offset": number},
        "resent": {"at_ms": 1_790_000_100_000, "by": "grace"} if number % 2 else None,
        "message": message_row(number),
    }


def group_row(name: str, lag: int) -> dict[str, Any]:
    return {
        "group": name,
        "mode": "clustering",
        "members": lag % 3,
        "lag": lag,
        "age_ms": lag * 1700,
        "is_paused": lag == 2,
        "retry_max_times": 16,
    }


def client_row(number: int) -> dict[str, Any]:
    return {
        "client_id": f"meter-{number:03}",
        "user": ODD_NAME,
        "address": "2001:db8::1" if number == 2 else "10.0.0.7" if number else "",
        "port": 51_883,
        "listener": "mqtt",
        "protocol": "5" if number % 2 else "3.1.1",
        "keep_alive_s": 60,
        "clean_start": number % 2 == 0,
        "expiry_s": 86_400,
        "connected_ms": 1_790_000_000_000,
        "gateway": "gateway-1",
        "worker": number,
        "subscriptions": 2,
        "in_flight_in": 1,
        "in_flight_out": 3,
        "messages_in": 1000 * number,
        "messages_out": 12,
        "bytes_in": 123_456 if number else None,
        "bytes_out": 654_321 if number else None,
    }


def quota_row(kind: str, name: str, limit: int) -> dict[str, Any]:
    numbers = ("publish_rate", "publish_bytes_rate", "topics", "sessions", "connections", "kept_bytes")
    used = ("messages_per_s", "bytes_per_s", *numbers[2:], "waited", "refused")
    return {
        "kind": kind,
        "name": name,
        "is_own": limit > 0,
        **dict.fromkeys(numbers, limit),
        "by": "grace",
        "changed_ms": 1_790_000_000_000,
        "used": dict.fromkeys(used, 7),
        "lacking": ["broker-1"] if kind == "key" else [],
    }


def tenant_row(name: str) -> dict[str, Any]:
    quota = quota_row("tenant", name, 50)
    limits = {limit: quota[limit] for limit in ("publish_rate", "topics", "sessions", "connections")}
    return {
        "tenant": name,
        "topics": 3,
        "groups": 2,
        "messages": 1_200,
        "access_keys": ["shop"],
        "quota": {
            **limits,
            "publish_bytes_rate": 0,
            "kept_bytes": 0,
            "is_own": True,
            "used": {**quota["used"], "topics": 3},
        },
    }


def ban_row(kind: str, value: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "value": value,
        "reason": ODD_NAME,
        "by": "grace",
        "made_ms": 1_790_000_000_000,
        "until_ms": 1_890_000_000_000 if kind == "user" else None,
    }


def session_row(number: int) -> dict[str, Any]:
    return {
        "client_id": f"meter-{number:03}",
        "broker": "broker-0",
        "online": number % 2 == 1,
        "gateway": "gateway-1/0" if number % 2 else "",
        "ended_ms": None if number % 2 else 1_790_000_000_000,
        "created_ms": 1_780_000_000_000,
        "expiry_s": 86_400,
        "principal": ODD_NAME,
    }


def replica_row(replica: str, role: str, is_led: bool) -> dict[str, Any]:
    is_there, leads = role != "missing", role == "leader"
    return {
        "replica": replica,
        "address": f"host-{replica}.example:10912",
        "role": role,
        "does": "leading" if leads else "copying" if is_there else "",
        "reason": "" if is_there else f"no connection to host-{replica}.example:10912 {ODD_NAME}",
        "serves": leads,
        "in_sync": role in ("leader", "in sync"),
        "whole": is_there or None,
        "epoch": 7 if is_there else None,
        "end": 1_048_576 if is_there else None,
        "confirmed": 1_048_000 if is_there else None,
        "behind_ms": 40 if is_led and not leads else None,
        "behind_bytes": 576 if is_led and not leads else None,
        "lease_ms": 6200 if leads else None,
        "may_lead": is_led and role == "in sync",
    }


def shard_row(broker: str, *roles: str) -> dict[str, Any]:
    return {
        "broker": broker,
        "copies": max(1, len(roles)),
        "epoch": 7 if roles else 0,
        "leader": "a" if "leader" in roles else "",
        "ok": "missing" not in roles,
        "replicas": [
            replica_row(chr(ord("a") + place), role, "leader" in roles) for place, role in enumerate(roles)
        ],
    }


def alarm_row(state: str) -> dict[str, Any]:
    return {
        "kind": "backlog_age",
        "name": "billing",
        "broker": "broker-0",
        "value": 75,
        "peak": 99,
        "threshold": 60,
        "since_ms": 1_790_000_000_000,
        "ended_ms": 1_790_000_100_000,
        "text": f"group billing {state} for 75 s",
    }


BANNED: Final = (
    ("address", "10.0.0.0/8"),
    ("client_id", ODD_NAME),
    ("pattern", "scan-*"),
    ("user", "depot"),
)
QUEUE: Final = {"broker": "broker-0", "queue_id": 0, "first_offset": 5, "end_offset": 1005}
"""A queue as every page that names queues has it."""


def refusal(status: int, code: str, message: str, **more: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, **more}}, status)


class ScriptedConsole:
    """What the API answers: `account` None is signed out; `refused` are calls (METHOD path) that fail.

    `clusters` are those at its registries, `asked` the paths and clusters of its calls.
    """

    def __init__(self) -> None:
        self.account: dict[str, Any] | None = {"name": "ada", "role": "admin", "must_change_password": False}
        self.refused: dict[str, JSONResponse] = {}
        self.said: list[tuple[str, str, Any]] = []
        self.clusters = ["plant"]
        self.asked: list[tuple[str, str]] = []
        self.removal: dict[str, Any] | None = None
        self.url = ""

    def be(self, role: str) -> None:
        assert self.account is not None
        self.account["role"] = role

    async def api(self, request: Request) -> Response:
        path, method = request.path_params["path"], request.method
        self.asked.append((path, request.query_params.get("cluster", "")))
        if method != "GET":
            assert path == "session" or request.headers["X-HoldMQ-CSRF"] == "proof"
            self.said.append((method, path, json.loads(await request.body() or b"null")))
        if refused := self.refused.get(f"{method} {path}"):
            return refused
        if path.split("/")[0] == "session":
            return self._session(path, method)
        if self.account is None:
            return refusal(401, "SIGNED_OUT", "nobody is signed in")
        return JSONResponse(self.answer(path, method, dict(request.query_params)))

    def _session(self, path: str, method: str) -> Response:
        if method == "DELETE":
            self.account = None
            return Response(status_code=204)
        if method == "POST":
            self.account = {"name": self.said[-1][2]["name"], "role": "admin", "must_change_password": True}
        if method == "PUT" and self.account is not None:
            self.account["must_change_password"] = False
        return JSONResponse({"account": self.account, "csrf": "proof", "auth": "accounts", "cluster": None})

    def answer(self, path: str, method: str, asked: dict[str, str]) -> dict[str, Any]:
        """The answer to a path below /api/v1."""
        kind, _, name = path.partition("/")
        if kind == "clusters":
            return {"clusters": [{"cluster": each, "brokers": [f"broker-{each}"]} for each in self.clusters]}
        if method != "GET":
            return ORDERS.get(path, {"topic": "made", "group": "made"})
        if kind == "topics" and path.endswith("/readers"):
            return {"readers": READERS, "total": len(READERS)}
        if kind == "topics" and name:
            return {
                **topic_row(name),
                "broker_rows": [{"broker": "broker-0", "write_queues": 2}],
                "queues": [{**QUEUE, "hidden_from_producers": False, "hidden_from_consumers": False}],
                "removal": self.removal,
            }
        if kind == "topics":
            rows = [topic_row(each) for each in TOPICS if asked.get("q", "") in each]
            sort = asked.get("sort", "topic")
            rows.sort(key=lambda row: row[sort.lstrip("-")], reverse=sort.startswith("-"))
            first = int(asked.get("after", 0))
            until = first + int(asked["limit"])
            more = str(until) if until < len(rows) else None
            return {"topics": rows[first:until], "total": len(rows), "next": more}
        if kind == "messages":
            return (
                message_row(int(name, 16))
                if name
                else {"messages": MESSAGES, "next": None, "is_complete": True}
            )
        if kind == "groups" and name:
            progress = [{"topic": "plant-000", **QUEUE, "offset": 5, "lag": 1000, "lag_ms": 9000}]
            return {**group_row(name, 7), "progress": progress, "clients": CLIENTS, "traffic": TRAFFIC}
        if kind == "clients" and name:
            return {**client_row(1), "filters": [{"filter": "commands/+/#", "qos": 1}]}
        if kind == "sessions" and name:
            return {**session_row(1), "waiting": 2, "subscriptions": FILTERS}
        return LISTS[path]


MESSAGES: Final = [message_row(number) for number in range(8)]
CLIENTS: Final = [
    {
        "client_id": "worker-1",
        "broker": "broker-0",
        "queues": 2,
        "topics": ["plant-000"],
        "address": "127.0.0.1:3000",
        "joined_ms": 1_790_000_000_000,
    }
]
TRAFFIC: Final = [
    {
        "topic": "plant-000",
        "messages_out_per_s": 12.5,
        "bytes_out_per_s": 1200.0,
        "requeued": 3,
        "timed_out": 2,
        "given_back": 1,
    }
]
SOURCE: Final = {
    "name": "client-1",
    "messages_in_per_s": 12.5,
    "bytes_in_per_s": 2048.0,
    "messages_out_per_s": 3.0,
    "bytes_out_per_s": 512.0,
    "messages_replayed_per_s": 0.0,
    "messages_in_per_s_day": 1.0,
    "messages_out_per_s_day": 1.0,
}
READERS: Final = [
    {
        "broker": "broker-0",
        "kind": kind,
        "group": group,
        "client_id": f"reader-{place}",
        "role": "client",
        "address": f"127.0.0.1:300{place}",
        "principal": "",
        "since_ms": 1_790_000_000_000,
        "seen_ms": 1_790_000_005_000,
    }
    for place, (kind, group) in enumerate((("shared", "billing"), ("bulk", ""), ("gateway", "")))
]
FILTERS: Final = [
    {
        "filter": "commands/+/#",
        "qos": 1,
        "no_local": False,
        "retain_as_published": True,
        "retain_handling": 0,
    }
]
ORDERS: Final[dict[str, dict[str, Any]]] = {
    "topics/plant-000/messages": {"message_id": "0" * 32, "broker": "broker-0", "queue_id": 1, "offset": 9},
    "groups/billing/reset": {
        "moved": [{"topic": "plant-000", "broker": "broker-0", "queue_id": 0, "before": 1005, "after": 5}]
    },
    "dead-letters/billing/resend": {"resent": 1, "repeated": 0, "failures": []},
    "dead-letters/billing/purge": {"purged": 8},
    "replicas/broker-0/switch": {"leader": "b"},
    "bans": ban_row("address", "192.0.2.0/24"),
    "bans/address/10.0.0.0/8": {"kind": "address", "value": "10.0.0.0/8"},
    "quotas/user/depot/7": {"kind": "user", "name": "depot/7"},
    "quotas/key/orders": {"kind": "key", "name": "orders"},
    "tenants/acme": {
        "tenant": "acme",
        "left": [],
        "access_keys": ["shop"],
        "notice": "access keys name acme still: shop",
    },
    "clients/kick": {"clients": 6, "dry_run": True},
    "accounts": {"account": {"name": "grace"}, "password": "shown-once"},
    "tokens": {"record": {"name": "ci"}, "token": "shown-once"},
}
LISTS: Final[dict[str, dict[str, Any]]] = {
    "groups": {
        "groups": [group_row(name, lag) for lag, name in enumerate(("billing", "audit", "search", "idle"))],
        "total": 4,
        "next": None,
    },
    "connections": {
        "connections": [
            {
                "broker": "broker-0",
                "role": role,
                "client_id": f"{role}-1",
                "address": f"127.0.0.1:400{place}",
                "language": "python",
                "software": "holdmq 0.1",
                "connected": "2026-11-20T14:52:59Z",
                "principal": "fleet",
                "kinds": ["producer", "consumer"] if role == "client" else [role],
                "produces": ["plant-000"] if role == "client" else [],
                "groups": ["billing"] if role == "client" else [],
                "reads": ["plant-001", "plant-002", "plant-003", "plant-004"] if role == "client" else [],
            }
            for place, role in enumerate(("gateway", "client", "console"))
        ],
        "total": 3,
        "next": None,
    },
    "clients": {"clients": [client_row(number) for number in range(6)], "total": 6, "next": None},
    "quotas": {
        "quotas": [
            quota_row("user", ODD_NAME, 1_000_000_000),
            quota_row("user", "eve", 0),
            quota_row("key", "orders", 50),
        ]
    },
    "tenants": {"tenants": [tenant_row("acme"), tenant_row("t" * 32)], "total": 2, "next": None},
    "tenants/acme": {
        **tenant_row("acme"),
        "topics": ["meters", "orders"],
        "groups": ["readers"],
    },
    "bans": {
        "bans": [ban_row(kind, value) for kind, value in BANNED],
        "flapping": [
            {
                "gateway": "gateway-1",
                "principal": ODD_NAME,
                "address": "10.0.0.7",
                "connects": 16,
                "left_s": 250,
            }
        ],
    },
    "connections/busiest": {
        "clients": [SOURCE, {**SOURCE, "name": "client-2"}],
        "access_keys": [{**SOURCE, "name": "fleet"}],
    },
    "clients-busiest": {
        "busiest": [
            {
                "name": name,
                "connections": 3,
                "messages_in": 12_000,
                "messages_out": 40,
                "bytes_in": 1_900_000,
                "bytes_out": 4_000,
                "error": error,
            }
            for name, error in ((ODD_NAME, 0), ("", 17))
        ]
    },
    "sessions": {"sessions": [session_row(number) for number in range(6)], "total": 6, "next": None},
    "dead-letters": {
        "groups": [{"group": "billing", "messages": 8, "resent": 4}],
        "total": 1,
        "next": None,
    },
    "dead-letters/billing": {
        "letters": [letter_row(number) for number in range(8)],
        "next": None,
        "messages": 8,
        "resent": 4,
    },
    "replicas": {
        "shards": [
            shard_row("broker-0", "leader", "in sync", "learner"),
            shard_row("broker-1", "missing", "in sync", "in sync"),
            shard_row("broker-2"),
        ]
    },
    "alarms": {"active": [alarm_row("has waited")], "history": [alarm_row("had waited")]},
    "accounts": {
        "accounts": [
            {
                "name": name,
                "role": role,
                "disabled": name == "gone",
                "must_change_password": name == "new",
                "created_ms": 1_780_000_000_000,
                "password_ms": 1_790_000_000_000,
            }
            for name, role in (("ada", "admin"), ("new", "operator"), ("gone", "viewer"))
        ]
    },
    "tokens": {
        "tokens": [
            {
                "name": "ci",
                "role": "operator",
                "created_ms": 1_780_000_000_000,
                "expires_ms": None,
                "by": "ada",
            }
        ]
    },
    "audit": {
        "rows": [
            {
                "time_ms": 1_790_000_000_000,
                "account": "ada",
                "address": "127.0.0.1",
                "method": "PUT",
                "path": f"/api/v1/topics/{status}",
                "what": ODD_NAME,
                "status": status,
            }
            for status in (200, 403, 503)
        ],
        "next": None,
    },
    "queries": {"queries": [{"name": "Messages per topic", "sql": "SELECT 1", "ready_made": True}]},
    **{
        name: {"first": 1_790_000_000, "until": 1_790_003_600, "step_seconds": 60, "rows": [], "topics": []}
        for name in ("history", "latency", "backlog", "talkers")
    },
    "tps": {"now": "2026-11-20T14:53:01Z", "seconds": 900, "topics": {}, "total": []}
    | {"current": {"second": "2026-11-20T14:52:59Z", "messages": 42, "bytes": 420, "topics": {}}},
}


@asynccontextmanager
async def scripted_console() -> AsyncIterator[ScriptedConsole]:
    """Serve the pages over a script, on a port of its own."""
    script = ScriptedConsole()

    files = PageFiles(STATIC)

    async def page(request: Request) -> Response:
        return files.answer(request, "index.html")

    async def file(request: Request) -> Response:
        return files.answer(request, request.path_params["name"])

    app = Starlette(
        routes=[
            Route(f"{API}/{{path:path}}", script.api, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
            Route("/static/{name:path}", file),
            Route("/{path:path}", page),
        ]
    )

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await app(scope, receive, with_headers)

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(guarded, port=port, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    deadline = time.monotonic() + 40
    while not server.started and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    script.url = f"http://127.0.0.1:{port}"
    try:
        yield script
    finally:
        server.should_exit = True
        await serving
