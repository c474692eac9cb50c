"""How a typed header becomes ext_fields and back.

Each header is a frozen dataclass, made by `header`, whose annotations are the wire's types (int, str,
bytes, bool, list, dict, or one of them `| None`). Rows (runs, queues, filters) are NamedTuples of
the same types and travel as msgpack arrays in field order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, Final, NamedTuple, NoReturn, Self, TypeVar, dataclass_transform

from holdmq.errors import Code, WireError
from holdmq.wire.untrusted import DEPTH_MAX

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bytes": (bytes,),
    "bool": (bool,),
    "list": (list, tuple),
    "dict": (dict,),
}
SIGNATURES_MAX: Final = 64
"""Combinations of types remembered per header; a header with two nullable fields and lists has eight."""
R = TypeVar("R", bound=tuple[Any, ...])
H = TypeVar("H", bound="Header")
C = TypeVar("C")


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
        if isinstance(value, dict):
            self._check_keys(value, owner)

    def _check_keys(self, found: dict[Any, Any], owner: str) -> None:
        """Every map in a field of maps has names as keys; those who show or sort them count on it."""
        inside: list[tuple[Any, int]] = [(found, 1)]
        while inside:
            value, depth = inside.pop()
            if isinstance(value, dict):
                if not all(isinstance(key, str) for key in value):
                    raise WireError(f"{owner}: a key in field {self.name!r} must be str", Code.MISSING_FIELD)
                value = value.values()
            if depth > DEPTH_MAX:
                raise WireError(
                    f"{owner}: field {self.name!r} is more than {DEPTH_MAX} arrays and maps deep",
                    Code.MISSING_FIELD,
                )
            inside += [(item, depth + 1) for item in value if isinstance(item, (dict, list))]


class _Layout:
    """The fields of a header or row, and the combinations of types that were found right.

    Whether values fit depends on their types alone, but for maps, whose keys are looked at each time; so one
    look-up decides for all others.
    """

    __slots__ = ("defaults", "fields", "names", "signatures")

    def __init__(self, found: Iterable[_Field], defaults: Iterable[Any] = ()) -> None:
        self.fields = tuple(found)
        self.defaults = tuple(defaults)
        """Of a row's last fields: what they are in the rows of a peer that does not know them."""
        self.names = tuple(f.name for f in self.fields)
        self.signatures: set[tuple[type, ...]] = set()

    def check(self, values: Iterable[Any], signature: tuple[type, ...], owner: str) -> None:
        for f, value in zip(self.fields, values, strict=True):
            f.check(value, owner)
        if len(self.signatures) < SIGNATURES_MAX and dict not in signature:
            self.signatures.add(signature)


_known: dict[type[Any], _Layout] = {}
"""Layouts already read from annotations: one entry per header class."""


def _field(name: str, annotation: str, required: bool) -> _Field:
    nullable = annotation.endswith("| None")
    base = annotation.removesuffix("| None").strip().split("[")[0]
    return _Field(name, _TYPES[base], nullable, required)


def layout_of(cls: type[Any]) -> _Layout:
    """What is known of a header's fields."""
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = _Layout(
            _field(f.name, str(f.type), f.default is MISSING and f.default_factory is MISSING)
            for f in fields(cls)
        )
    return known


def _row_layout(cls: type[Any]) -> _Layout:
    known = _known.get(cls)
    if known is None:
        annotations = {k: getattr(v, "__forward_arg__", v) for k, v in cls.__annotations__.items()}
        defaults = getattr(cls, "_field_defaults", {}).values()
        known = _known[cls] = _Layout((_field(k, str(v), True) for k, v in annotations.items()), defaults)
    return known


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def header(cls: type[C]) -> type[C]:
    """Make a subclass of `Header` a frozen dataclass with slots.

    `Header` has its methods. What `dataclass` writes for each class by itself takes 0.8 ms: for all
    headers together that was a fifth of a broker's start.
    """
    return dataclass(init=False, repr=False, eq=False, slots=True)(cls)


class Header:
    """What typed headers share: to and from ext_fields, and what a frozen dataclass does."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Write the class's own ``__init__``, with its first instance: few processes use all headers."""
        cls = type(self)
        made = _initializer(cls)
        setattr(cls, "__init__", made)  # noqa: B010 - to mypy a method is no variable
        made(self, *args, **kwargs)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.to_ext().items())
        return f"{type(self).__qualname__}({values})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(self.to_ext().values())

    def to_ext(self) -> dict[str, Any]:
        """The ext_fields that carry this header."""
        return {name: getattr(self, name) for name in layout_of(type(self)).names}

    @classmethod
    def from_ext(cls, ext: dict[str, Any]) -> Self:
        """Read ext_fields: unknown fields are ignored; WireError names one missing or ill-typed."""
        layout = layout_of(cls)
        try:
            values = [ext[name] for name in layout.names]
        except KeyError:
            return _with_defaults(cls, layout, ext)
        signature = tuple(map(type, values))
        if signature not in layout.signatures:
            layout.check(values, signature, cls.__name__)
        return cls(*values)


def _initializer(cls: type[Any]) -> Callable[..., None]:
    """``__init__`` as a dataclass has it. Slots are set past ``__setattr__``, which refuses."""
    given: dict[str, Any] = {"_missing": MISSING}
    parameters, lines = ["self"], []
    for f in fields(cls):
        name, value = f.name, f.name
        given[f"_set_{name}"] = cls.__dict__[name].__set__
        if f.default_factory is not MISSING:
            given[f"_make_{name}"] = f.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        elif f.default is not MISSING:
            given[f"_default_{name}"] = f.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f"    _set_{name}(self, {value})")
    source = f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines or ["    pass"])
    exec(source, given)  # noqa: S102 # nosec B102 # of the names of fields of our own classes
    made: Callable[..., None] = given["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _with_defaults(cls: type[H], layout: _Layout, ext: dict[str, Any]) -> H:
    """A header of a peer that knows fewer fields."""
    values: dict[str, Any] = {}
    for f in layout.fields:
        if f.name in ext:
            f.check(ext[f.name], cls.__name__)
            values[f.name] = ext[f.name]
        elif f.required:
            raise WireError(f"{cls.__name__}: required field {f.name!r} is missing", Code.MISSING_FIELD)
    return cls(**values)


def rows(kind: type[R], values: list[Any]) -> list[R]:
    """Read msgpack arrays as `kind`; items after the known ones are ignored, last ones that a peer does not
    know have their defaults.

    Raises WireError naming the row, and the field that is missing or ill-typed.
    """
    layout = _row_layout(kind)
    width = len(layout.names)
    least = width - len(layout.defaults)
    signatures = layout.signatures
    out: list[R] = []
    for i, value in enumerate(values):
        if not isinstance(value, (list, tuple)) or len(value) < least:
            raise WireError(f"{kind.__name__} {i} must be an array of {least} items", Code.MISSING_FIELD)
        given = len(value)
        known = value if given == width else [*value[:width], *layout.defaults[given - least :]]
        signature = tuple(map(type, known))
        if signature not in signatures:
            layout.check(known, signature, f"{kind.__name__} {i}")
        out.append(tuple.__new__(kind, known))
    return out
