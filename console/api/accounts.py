"""Sign-in, accounts, tokens, and the audit of changes."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from pydantic import Field, SecretStr
from starlette.responses import Response

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Result
from console.api.moments import Millisecond
from console.api.refusals import RefusedRequest
from console.api.serving import COOKIE
from console.identity.accounts import NAME_PATTERN, PASSWORD_MIN, Account, Token
from console.identity.audit import AuditLog, AuditRow
from console.identity.identity import Caller, KnowsCallers, SignedInCallers
from console.identity.roles import Rank, RoleName

AUDIT_AFTER_MAX: Final = 100_000


class Credentials(InputModel):
    """Name and password of an account."""

    name: str = Field(max_length=64)
    password: SecretStr = Field(max_length=4096)


class PasswordChange(InputModel):
    """The password until now, and the one from now on."""

    old: SecretStr = Field(max_length=4096)
    new: SecretStr = Field(min_length=PASSWORD_MIN, max_length=256)


class OwnAccount(Answer):
    """The account of whoever is signed in."""

    name: str
    role: RoleName
    must_change_password: bool


class SessionAnswer(Answer):
    """The account that is signed in (null = none), and what the page sends back with each change."""

    account: OwnAccount | None
    csrf: str
    auth: Literal["accounts", "none"]


class AccountRow(Answer):
    """An account, without its password."""

    name: str
    role: RoleName
    disabled: bool
    must_change_password: bool
    created_ms: int
    password_ms: int


class AccountRows(Answer):
    """All accounts, by name."""

    accounts: list[AccountRow]


class NewAccount(InputModel):
    """A name and a role; the password is made here, and shown once."""

    name: str = Field(pattern=NAME_PATTERN)
    role: RoleName


class AccountChange(InputModel):
    """What is to be different; null = as it is."""

    role: RoleName | None = None
    disabled: bool | None = None


class AccountPassword(Answer):
    """An account and its new password, which is shown this once."""

    account: AccountRow
    password: str


class TokenRow(Answer):
    """A program's token, without its secret; `expires_ms` null = never."""

    name: str
    role: RoleName
    created_ms: int
    expires_ms: int | None
    by: str


class TokenRows(Answer):
    """All tokens, by name."""

    tokens: list[TokenRow]


class NewToken(InputModel):
    """A token that counts for `days`; null = until it is removed."""

    name: str = Field(pattern=NAME_PATTERN)
    role: RoleName
    days: int | None = Field(None, ge=1, le=3650)


class TokenSecret(Answer):
    """A token and its secret, which is shown this once: Authorization: Bearer …."""

    record: TokenRow
    token: str


class AuditQuery(InputModel):
    """Which changes are asked for."""

    q: str = Field("", max_length=256)
    since: Millisecond = Field(0, alias="from")
    until: Millisecond | None = Field(None, alias="to")
    limit: int = Field(100, ge=1, le=1000)
    after: int = Field(0, ge=0, le=AUDIT_AFTER_MAX)


class AuditRows(Answer):
    """A part of the changes, newest first."""

    rows: list[AuditRow]
    next: str | None


def open_endpoints(callers: KnowsCallers) -> list[Endpoint]:
    """Return who I am, where nobody signs in."""

    async def show(call: Call) -> Result:
        return _session(await callers.caller("", ""), "none")

    return [Endpoint("GET", "session", Rank.OPEN, show, "Who is signed in.", SessionAnswer)]


def endpoints(callers: SignedInCallers, audit: AuditLog) -> list[Endpoint]:
    """Return the endpoints over accounts, sessions and the audit log."""
    file = callers.file

    async def show(call: Call) -> Result:
        return _session(await callers.caller(call.request.cookies.get(COOKIE, ""), ""), "accounts")

    async def sign_in(call: Call) -> Result:
        asked: Credentials = call.body
        secret, caller = await callers.sign_in(asked.name, asked.password.get_secret_value(), call.address)
        return _with_cookie(call, secret, caller)

    async def sign_out(call: Call) -> Result:
        callers.sessions.end(call.request.cookies.get(COOKIE, ""))
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    async def change_password(call: Call) -> Result:
        asked: PasswordChange = call.body
        if call.caller.csrf is None:
            raise RefusedRequest(403, "NOT_PERMITTED", "a token has no password")
        secret, caller = await callers.change_password(
            call.caller.name, asked.old.get_secret_value(), asked.new.get_secret_value(), call.address
        )
        return _with_cookie(call, secret, caller)

    async def list_accounts(_call: Call) -> Result:
        known = (await callers.identities(anew=True)).accounts
        return AccountRows(accounts=[_account(known[name]) for name in sorted(known)])

    async def add_account(call: Call) -> Result:
        asked: NewAccount = call.body
        account, password = await asyncio.to_thread(file.add, asked.name, asked.role)
        await callers.identities(anew=True)
        return AccountPassword(account=_account(account), password=password)

    async def change_account(call: Call) -> Result:
        asked: AccountChange = call.body
        account = await asyncio.to_thread(file.change, call.path("name"), asked.role, asked.disabled)
        await callers.identities(anew=True)
        return _account(account)

    async def reset_password(call: Call) -> Result:
        account, password = await asyncio.to_thread(file.set_password, call.path("name"))
        await callers.identities(anew=True)
        return AccountPassword(account=_account(account), password=password)

    async def remove_account(call: Call) -> Result:
        await asyncio.to_thread(file.remove, call.path("name"))
        await callers.identities(anew=True)
        return None

    async def list_tokens(_call: Call) -> Result:
        known = (await callers.identities(anew=True)).tokens
        return TokenRows(tokens=[_token(known[name]) for name in sorted(known)])

    async def add_token(call: Call) -> Result:
        asked: NewToken = call.body
        token, secret = await asyncio.to_thread(
            file.add_token, asked.name, asked.role, asked.days, call.caller.name
        )
        await callers.identities(anew=True)
        return TokenSecret(record=_token(token), token=secret)

    async def remove_token(call: Call) -> Result:
        await asyncio.to_thread(file.remove_token, call.path("name"))
        await callers.identities(anew=True)
        return None

    async def list_audit(call: Call) -> Result:
        query: AuditQuery = call.query
        rows, following = await audit.page(query.q, query.since, query.until, query.limit, query.after)
        return AuditRows(rows=rows, next=None if following is None else str(following))

    admin = Rank.ADMIN
    return [
        Endpoint("GET", "session", Rank.OPEN, show, "Who is signed in.", SessionAnswer),
        Endpoint("POST", "session", Rank.OPEN, sign_in, "Sign in.", SessionAnswer, body=Credentials),
        Endpoint("DELETE", "session", Rank.VIEWER, sign_out, "Sign out.", status=204,
                 before_own_password=True),
        Endpoint("PUT", "session/password", Rank.VIEWER, change_password, "Change one's own password.",
                 SessionAnswer, body=PasswordChange, before_own_password=True),
        Endpoint("GET", "accounts", admin, list_accounts, "Accounts.", AccountRows),
        Endpoint("POST", "accounts", admin, add_account, "Add an account.", AccountPassword,
                 body=NewAccount, status=201),
        Endpoint("PATCH", "accounts/{name}", admin, change_account, "Change an account's role, or close it.",
                 AccountRow, body=AccountChange),
        Endpoint("POST", "accounts/{name}/password", admin, reset_password, "Give an account a new password.",
                 AccountPassword),
        Endpoint("DELETE", "accounts/{name}", admin, remove_account, "Remove an account.", status=204),
        Endpoint("GET", "tokens", admin, list_tokens, "Tokens of programs.", TokenRows),
        Endpoint("POST", "tokens", admin, add_token, "Make a token.", TokenSecret, body=NewToken, status=201),
        Endpoint("DELETE", "tokens/{name}", admin, remove_token, "Remove a token.", status=204),
        Endpoint("GET", "audit", admin, list_audit, "What was changed, and by whom.", AuditRows, AuditQuery),
    ]  # fmt: skip


def _with_cookie(call: Call, secret: str, caller: Caller) -> Response:
    answer = _session(caller, "accounts").model_dump_json()
    response = Response(answer, media_type="application/json")
    is_secure = call.request.url.scheme == "https"
    response.set_cookie(COOKIE, secret, path="/", httponly=True, samesite="strict", secure=is_secure)
    return response


def _session(caller: Caller | None, auth: Literal["accounts", "none"]) -> SessionAnswer:
    if caller is None:
        return SessionAnswer(account=None, csrf="", auth=auth)
    own = OwnAccount(
        name=caller.name, role=caller.role_name, must_change_password=caller.must_change_password
    )
    return SessionAnswer(account=own, csrf=caller.csrf or "", auth=auth)


def _account(account: Account) -> AccountRow:
    return AccountRow.model_validate(account.model_dump(exclude={"password_hash"}))


def _token(token: Token) -> TokenRow:
    return TokenRow.model_validate(token.model_dump(exclude={"digest"}))
