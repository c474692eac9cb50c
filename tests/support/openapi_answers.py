"""Answers of the console held against the models that its OpenAPI document is made from."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def conforms(value: Any, model: type[BaseModel]) -> None:
    """Assert that `value` is what `model` says, without a property that it does not name."""
    model.model_validate(value, strict=True)
