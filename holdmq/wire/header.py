"""How a typed header becomes ext_fields and back.

Each header is a frozen dataclass whose annotations are the wire's types (int, str, bytes,
bool, list, dict, or one of them `| None`). Rows (runs, queues, filters) are NamedTuples of
the same types and travel as msgpack arrays in field order.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, NamedTuple, Self, TypeVar

from holdmq.errors import Code, WireError

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bytes": (bytes,),
    "bool": (bool,),
    "list": (list, tuple),
    "dict": (dict,),
}
R = TypeVar("R", bound=tuple[Any, ...])
_known: dict[type[Any], tuple[_Field, ...]] = {}
"""Layouts already read from annotations: one entry per header class."""


class _Field(NamedTuple):
    name: str
    types: tuple[type, ...]
    nullable: bool
    required: bool

    def check(self, value: Any, owner: str) -> None:
        ok = isinstance(value, self.types) and (bool in self.types or not isinstance(value, bool))
        if not ok and not (value is None and self.nullable):
            wanted = self.types[0].__name__
            raise WireError(f"{owner}: field {self.name!r} must be {wanted}", Code.MISSING_FIELD)


def _field(name: str, annotation: str, required: bool) -> _Field:
    nullable = annotation.endswith("| None")
    base = annotation.removesuffix("| None").strip().split("[")[0]
    return _Field(name, _TYPES[base], nullable, required)


def _header_fields(cls: type[Any]) -> tuple[_Field, ...]:
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = tuple(
            _field(f.name, str(f.type), f.default is MISSING and f.default_factory is MISSING)
            for f in fields(cls)
        )
    return known


def _row_fields(cls: type[Any]) -> tuple[_Field, ...]:
    known = _known.get(cls)
    if known is None:
        annotations = {k: getattr(v, "__forward_arg__", v) for k, v in cls.__annotations__.items()}
        known = _known[cls] = tuple(_field(k, str(v), True) for k, v in annotations.items())
    return known


class Header:
    """What typed headers share: to and from ext_fields."""

    __slots__ = ()

    def to_ext(self) -> dict[str, Any]:
        """The ext_fields that carry this header."""
        return {f.name: getattr(self, f.name) for f in _header_fields(type(self))}

    @classmethod
    def from_ext(cls, ext: dict[str, Any]) -> Self:
        """Read ext_fields: unknown fields are ignored; WireError names one missing or ill-typed."""
        values: dict[str, Any] = {}
        for f in _header_fields(cls):
            if f.name in ext:
                f.check(ext[f.name], cls.__name__)
                values[f.name] = ext[f.name]
            elif f.required:
                raise WireError(f"{cls.__name__}: required field {f.name!r} is missing", Code.MISSING_FIELD)
        return cls(**values)


def rows(kind: type[R], values: list[Any]) -> list[R]:
    """Read msgpack arrays as `kind`; items after the known ones are ignored.

    Raises WireError naming the row, and the field that is missing or ill-typed.
    """
    layout = _row_fields(kind)
    width = len(layout)
    out: list[R] = []
    for i, value in enumerate(values):
        if not isinstance(value, (list, tuple)) or len(value) < width:
            raise WireError(f"{kind.__name__} {i} must be an array of {width} items", Code.MISSING_FIELD)
        for f, item in zip(layout, value, strict=False):
            f.check(item, f"{kind.__name__} {i}")
        out.append(kind(*value[:width]))
    return out
