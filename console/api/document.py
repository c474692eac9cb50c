"""The endpoint that gives the description of all the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import RootModel
from starlette.responses import JSONResponse

from console.api.endpoint import Call, Endpoint, Result
from console.api.openapi import document
from console.identity.roles import Rank


class OpenApiDocument(RootModel[dict[str, Any]]):
    """The API, described by OpenAPI 3.1."""


def with_document(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the endpoints, and the one that describes them all."""
    described: dict[str, Any] = {}

    async def show(_call: Call) -> Result:
        return JSONResponse(described)

    one = Endpoint("GET", "openapi.json", Rank.OPEN, show, "This document.", OpenApiDocument)
    whole = [*endpoints, one]
    described.update(document(whole))
    return whole
