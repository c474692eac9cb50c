"""Serves the table of endpoints: who asks, whether he may, what came, what is answered and written down."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog
from pydantic import BaseModel, SecretStr, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from console.api.endpoint import CLUSTER, PREFIX, Call, Endpoint, Handler, InputModel
from console.api.http import error_response
from console.api.refusals import RefusedRequest, refusal_of
from console.identity.audit import AuditLog, AuditRow
from console.identity.identity import Caller, KnowsCallers
from console.identity.roles import Rank

COOKIE: Final = "holdmq_console"
CSRF_HEADER: Final = "X-HoldMQ-CSRF"
BEARER: Final = "bearer "
SHOWN_MAX: Final = 200
"""Characters of a value in the audit log."""
UNSHOWN: Final = frozenset({"body", "body_base64", "sql", "properties"})
"""Fields with what people wrote: the audit log says what was done, not what messages say."""

log = structlog.get_logger("holdmq.console")


class KnowsClusters(Protocol):
    """Finds who answers about one cluster."""

    async def handler(self, endpoint: Endpoint, cluster: str) -> Handler:
        """Return what answers this endpoint for a cluster. Raises RefusedRequest, HoldMQError."""
        ...


class EndpointServer:
    """Answers by a table of endpoints: `callers` says who asks, `audit` takes what changes something.

    `clusters` has those who answer in place of the table when a request names a cluster.
    """

    def __init__(self, callers: KnowsCallers, audit: AuditLog, clusters: KnowsClusters) -> None:
        self._callers = callers
        self._audit = audit
        self._clusters = clusters

    def routes(self, endpoints: Iterable[Endpoint]) -> list[BaseRoute]:
        """Return the routes of these endpoints."""
        return [
            Route(f"{PREFIX}/{_starlette_path(one)}", self._answering(one), methods=[one.method])
            for one in endpoints
        ]

    def _answering(self, endpoint: Endpoint) -> Any:
        async def answer(request: Request) -> Response | ASGIApp:
            caller: Caller | None = None
            body: InputModel | None = None
            cluster = request.query_params.get(CLUSTER, "") if endpoint.is_of_cluster else ""
            try:
                caller = await self.caller_of(request)
                _admit(endpoint, caller, request)
                query = _query_of(endpoint, request)
                body = await _body_of(endpoint, request)
                asked = caller if caller is not None else Caller("", Rank.OPEN)
                handler = await self._clusters.handler(endpoint, cluster) if cluster else endpoint.handler
                result = await handler(Call(request, asked, query, body))
                response = _response(endpoint, result)
            except Exception as error:
                refusal = refusal_of(error)
                if refusal is None:
                    log.exception("a request has failed", method=request.method, path=request.url.path)
                    refusal = RefusedRequest(500, "SYSTEM_ERROR", "the console failed; its log has the cause")
                response = _refused(refusal)
            if endpoint.is_change and (caller is not None or endpoint.role is Rank.OPEN):
                await self._write_down(endpoint, request, caller, body, cluster, response)
            return response

        return answer

    async def caller_of(self, request: Request) -> Caller | None:
        """Return who makes a request; None = nobody that is known. A wrong token is nobody's."""
        return await self._callers.caller(*secrets_of(request))

    async def _write_down(
        self,
        endpoint: Endpoint,
        request: Request,
        caller: Caller | None,
        body: InputModel | None,
        cluster: str,
        response: Response | ASGIApp,
    ) -> None:
        details = _shown(body) | ({CLUSTER: cluster[:SHOWN_MAX]} if cluster else {})
        row = AuditRow(
            time_ms=time.time_ns() // 1_000_000,
            account=caller.name if caller is not None else str(details.get("name", ""))[:SHOWN_MAX],
            address=request.client.host if request.client is not None else "",
            method=endpoint.method,
            path=request.url.path[:1000],
            what=f"{endpoint.summary} {json.dumps(details)}" if details else endpoint.summary,
            status=response.status_code if isinstance(response, Response) else 200,
        )
        await self._audit.add(row)


def secrets_of(request: Request) -> tuple[str, str]:
    """Return what says who makes a request: the session's cookie and the token, "" for none."""
    header = request.headers.get("authorization", "")
    bearer = header[len(BEARER) :].strip() if header.lower().startswith(BEARER) else ""
    return request.cookies.get(COOKIE, ""), bearer


def _starlette_path(endpoint: Endpoint) -> str:
    path = endpoint.path
    for name in endpoint.names_slashes:
        path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
    return path


def _admit(endpoint: Endpoint, caller: Caller | None, request: Request) -> None:
    """Raise the RefusedRequest of whoever may not ask this."""
    if endpoint.role is Rank.OPEN:
        return
    if caller is None:
        raise RefusedRequest(401, "SIGNED_OUT", "sign in first, or send a token: Authorization: Bearer …")
    if endpoint.is_change and caller.csrf is not None:
        sent = request.headers.get(CSRF_HEADER, "")
        if not secrets.compare_digest(sent.encode(errors="replace"), caller.csrf.encode()):
            raise RefusedRequest(
                403, "CSRF", f"the header {CSRF_HEADER} must have what GET {PREFIX}/session gives as csrf"
            )
    if caller.must_change_password and not endpoint.before_own_password:
        raise RefusedRequest(
            403,
            "PASSWORD_NOT_CHOSEN",
            f"somebody else has seen the password of {caller.name}: choose another one first "
            f"(PUT {PREFIX}/session/password)",
        )
    if caller.role < endpoint.role:
        raise RefusedRequest(
            403,
            "NOT_PERMITTED",
            f"{endpoint.role.name.lower()} may do this; {caller.name} is {caller.role_name}",
        )


def _query_of(endpoint: Endpoint, request: Request) -> InputModel:
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise RefusedRequest(400, "INVALID_ARGUMENT", f"{name[:80]} is given more than once", name[:80])
        given[name] = value
    if endpoint.is_of_cluster:
        given.pop(CLUSTER, None)
    return _checked(endpoint.query, given)


async def _body_of(endpoint: Endpoint, request: Request) -> InputModel | None:
    if endpoint.body is None:
        return None
    # A form or text/plain is what another site's page may send without being asked first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedRequest(
            400, "INVALID_ARGUMENT", "the request must be JSON, with Content-Type: application/json"
        )
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > endpoint.body_max:
            raise RefusedRequest(413, "REQUEST_TOO_LARGE", f"a request has at most {endpoint.body_max} bytes")
    try:
        value: Any = json.loads(bytes(raw))
        # JSON can say half of a character, UTF-8 cannot: what has one could never be sent again.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RefusedRequest(
            400, "INVALID_ARGUMENT", "the request has half of a character, a surrogate without its other half"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RefusedRequest(
            400, "INVALID_ARGUMENT", f"the request is no JSON: {str(error)[:100]}"
        ) from error
    return _checked(endpoint.body, value)


def _checked(shape: type[InputModel], value: Any) -> InputModel:
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        said = first["msg"].removeprefix("Value error, ")
        field = str(first["loc"][0])[:80] if first["loc"] else None
        raise RefusedRequest(
            400, "INVALID_ARGUMENT", f"{place}: {said}" if place else f"the request: {said}", field
        ) from error


def _response(endpoint: Endpoint, result: BaseModel | ASGIApp | None) -> Response | ASGIApp:
    if result is None:
        return Response(status_code=204)
    if isinstance(result, BaseModel):
        content = result.model_dump_json(by_alias=True, exclude_unset=True)
        return Response(content, endpoint.status, media_type="application/json")
    return result


def _refused(refusal: RefusedRequest) -> Response:
    response = error_response(refusal.status, refusal.code, refusal.message, refusal.field)
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(refusal.retry_after_s)
    return response


def _shown(body: InputModel | None) -> dict[str, Any]:
    """Return what of a request is written down: no secrets, no messages."""
    if body is None:
        return {}
    shown: dict[str, Any] = {}
    for name in body.model_fields_set:
        value = getattr(body, name)
        if name in UNSHOWN or isinstance(value, SecretStr):
            continue
        shown[name] = value if isinstance(value, int | float | bool | None) else str(value)[:SHOWN_MAX]
    return dict(sorted(shown.items()))
