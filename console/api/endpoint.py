"""One row of the table that the API is: who may ask what, what goes in, and what comes out.

The same models check what comes, write the answer and describe both: the OpenAPI document, the checks of
roles and the tests are made from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.types import ASGIApp

from console.identity.identity import Caller
from console.identity.roles import Rank

PREFIX: Final = "/api/v1"
BODY_MAX: Final = 8 * 65_536
"""Bytes of a request: the longest statement of SQL, each of its characters escaped."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class InputModel(BaseModel):
    """What goes in: a field that is not known is a mistake, and is told by its name."""

    model_config = ConfigDict(extra="forbid", str_max_length=1 << 20)


class Answer(BaseModel):
    """What comes out; a `notice` is a sentence why something is empty or may be behind."""

    model_config = ConfigDict(extra="forbid")


class Noticed(Answer):
    """An answer that may say why something is missing."""

    notice: str | None = Field(None, description="Why something is empty or may be behind.")


class ErrorDetail(Answer):
    """What is wrong, for programs and for people; `field` names the input that it belongs to."""

    code: str
    message: str
    field: str | None = None


class ErrorAnswer(Answer):
    """Every answer that is no success."""

    error: ErrorDetail


class ListQuery(InputModel):
    """How a part of a list is asked for. `after`: the `next` of the part before."""

    q: str = Field("", max_length=256, description="Only rows with this in their names.")
    sort: str = Field("", max_length=40, description="A column; with - before it, the largest first.")
    limit: int = Field(200, ge=1, le=1000)
    after: str = Field("", max_length=4096)


class Nothing(InputModel):
    """No parameters, or no body."""


@dataclass(frozen=True)
class Call:
    """A request that may be answered: who asks, and what came, checked."""

    request: Request
    caller: Caller
    query: Any
    body: Any

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self.request.client.host if self.request.client is not None else ""


CLUSTER: Final = "cluster"
"""The parameter that says of which cluster the brokers are to be that are asked."""

Result = BaseModel | ASGIApp | None
Handler = Callable[[Call], Awaitable[Result]]


@dataclass(frozen=True)
class Endpoint:
    """A row of the table. `answer` None: nothing comes back but the status.

    `files`: other media types that an answer may have. `is_of_cluster`: the parameter `cluster` may say about
    which one it is asked. `before_own_password`: it may be asked with a password
    that somebody else has seen.
    """

    method: Method
    path: str
    role: Rank
    handler: Handler
    summary: str
    answer: type[BaseModel] | None = None
    query: type[InputModel] = Nothing
    body: type[InputModel] | None = None
    status: int = 200
    files: tuple[str, ...] = ()
    body_max: int = BODY_MAX
    before_own_password: bool = False
    names_slashes: frozenset[str] = field(default_factory=frozenset)
    is_of_cluster: bool = False

    @property
    def is_change(self) -> bool:
        """Whether it has an effect, and so is refused to other sites' pages, and written down."""
        return self.method not in SAFE_METHODS
