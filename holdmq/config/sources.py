"""Reads the sources of the configuration, and refuses by name what they get wrong.

Sources and their precedence are described in ``holdmq.config.model``.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from holdmq.config.changes import is_reloaded
from holdmq.config.model import Config
from holdmq.config.section import Section
from holdmq.errors import ConfigError

ENV_PREFIX: Final = "HOLDMQ_"
ENV_CONFIG: Final = "HOLDMQ_CONFIG"

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "bytes": "bytes"}


class KeyInfo(NamedTuple):
    """A row of the reference: one key and all there is to know of it."""

    key: str
    type: str
    default: Any
    range: str
    """What a number may be, as "1 to 64"; "" = anything of the type."""
    unit: str
    env: str
    meaning: str
    change: str
    """"reload" = a running process takes it over, as told; "restart" = its next start does."""


class _Given(NamedTuple):
    """One value as a source gave it; `text` says that it has no type of its own yet."""

    key: str
    value: Any
    source: str
    text: bool


def load(
    path: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Config:
    """Read all sources and return the checked configuration.

    `path` is the TOML file (None = ``HOLDMQ_CONFIG`` if set, else no file), `sets` holds
    ``section.key=value`` strings, `environ` defaults to the process's environment. Raises ConfigError,
    which names the key, its source, and the nearest known key when it is unknown.
    """
    env = os.environ if environ is None else environ
    if path is None and env.get(ENV_CONFIG):
        path = Path(env[ENV_CONFIG])
    given = [*(_from_file(path) if path else ()), *_from_environ(env), *_from_sets(sets)]
    fields = _fields()
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for item in given:
        field = fields.get(item.key)
        if field is None:
            raise ConfigError(f'unknown key "{item.key}" in {item.source}{_nearest(item.key, fields)}')
        *sections, name = item.key.split(".")
        within = values
        for section in sections:
            within = within.setdefault(section, {})
        within[name] = _checked(item, field)
        sources[item.key] = item.source
    try:
        return Config.model_validate(values).with_sources(sources, str(path) if path else None, sets)
    except ValidationError as error:
        # Each value is right by itself; a section found that they do not go together.
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        source = sources.get(key, "its default")
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f'the value {problem["input"]} of "{key}" in {source} is wrong: {message}'
        ) from error


def load_again(config: Config, environ: Mapping[str, str] | None = None) -> Config:
    """Read the sources of `config` anew: its file, the environment as it is now, and the same ``--set``.

    Raises ConfigError as `load` does; `config` itself is not changed.
    """
    return load(Path(config.file) if config.file else None, config.sets, environ)


def reference() -> list[KeyInfo]:
    """Return every key with type, default, unit, environment variable and meaning."""
    rows = []
    for key, field in _fields().items():
        unit = _UNITS.get(key.rsplit("_", 1)[-1], "") if "_" in key else ""
        facts = (_type_name(field), field.default, _range_of(field), unit)
        rows.append(KeyInfo(key, *facts, env_name(key), field.description or "", _change_of(key)))
    return rows


def table_reference() -> list[KeyInfo]:
    """Return the keys of the tables in lists, as ``gateway.listeners[].port``; they have no variables."""
    return [
        KeyInfo(
            f"{key}[].{name}",
            *(_type_name(field), _default_of(field), _range_of(field), "", "", field.description or ""),
            _change_of(key),
        )
        for key, of_list in _fields().items()
        if (table := _table_of(of_list.annotation)) is not None
        for name, field in table.model_fields.items()
    ]


def _change_of(key: str) -> str:
    return "reload" if is_reloaded(key) else "restart"


def env_name(key: str) -> str:
    """Return the environment variable of ``section.key``."""
    return ENV_PREFIX + key.upper().replace(".", "__")


def _fields() -> dict[str, FieldInfo]:
    """Every key → its field; those of a section within a section have two dots."""
    found: dict[str, FieldInfo] = {}
    for section, info in Config.model_fields.items():
        model = _section_of(info)
        if model is None:
            raise TypeError(f"Config.{section} is no Section")
        found |= _fields_of(section, model)
    return found


def _fields_of(section: str, model: type[Section]) -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        inner = _section_of(field)
        found |= {f"{section}.{name}": field} if inner is None else _fields_of(f"{section}.{name}", inner)
    return found


def _section_of(field: FieldInfo) -> type[Section] | None:
    model = field.annotation
    return model if isinstance(model, type) and issubclass(model, Section) else None


def _range_of(field: FieldInfo) -> str:
    bounds = {
        name: getattr(rule, name)
        for rule in field.metadata for name in ("ge", "gt", "le", "lt") if hasattr(rule, name)
    }  # fmt: skip
    least, most = bounds.get("ge"), bounds.get("le")
    parts = [
        f"above {bounds['gt']:,}" if "gt" in bounds else "",
        f"{least:,} to {most:,}" if least is not None and most is not None else "",
        f"{least:,} or more" if least is not None and most is None else "",
        f"up to {most:,}" if most is not None and least is None else "",
        f"below {bounds['lt']:,}" if "lt" in bounds else "",
    ]
    return ", ".join(filter(None, parts))


def _default_of(field: FieldInfo) -> Any:
    return "needed" if field.is_required() else field.default


def _table_of(annotation: Any) -> type[Section] | None:
    """The model of a key that is a list of tables."""
    inner = get_args(annotation)[:1]
    is_table = bool(inner) and isinstance(inner[0], type) and issubclass(inner[0], Section)
    return inner[0] if is_table else None


def _type_name(field: FieldInfo) -> str:
    annotation = field.annotation
    if _table_of(annotation) is not None:
        return "list of tables"
    if get_origin(annotation) is dict:
        return "table"
    shown = str(annotation).replace("pydantic.types.SecretStr", "secret")
    if "Literal" in shown:
        return " | ".join(get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return shown


def _from_file(path: Path) -> list[_Given]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not valid TOML: {error}") from error
    found = []
    for section, content in document.items():
        if section not in Config.model_fields:
            raise ConfigError(
                f'unknown section "{section}" in {path}{_nearest(section, Config.model_fields)}'
            )
        model = _section_of(Config.model_fields[section])
        assert model is not None  # else there were no fields
        found += _from_section(section, model, content, path)
    return found


def _from_section(section: str, model: type[Section], content: Any, path: Path) -> list[_Given]:
    if not isinstance(content, dict):
        raise ConfigError(f'"{section}" in {path} is a section: write [{section}] with its keys below')
    found = []
    for name, value in content.items():
        key = f"{section}.{name}"
        field = model.model_fields.get(name)
        inner = None if field is None else _section_of(field)
        if inner is None:
            found.append(_Given(key, value, str(path), False))
        else:
            found += _from_section(key, inner, value, path)
    return found


def _from_environ(environ: Mapping[str, str]) -> list[_Given]:
    found = []
    for variable, value in sorted(environ.items()):
        # Names without "__" are not keys: Kubernetes sets HOLDMQ_PORT and HOLDMQ_SERVICE_HOST by itself.
        if not variable.startswith(ENV_PREFIX) or "__" not in variable:
            continue
        key = variable.removeprefix(ENV_PREFIX).replace("__", ".").lower()
        found.append(_Given(key, value, f"variable {variable}", True))
    return found


def _from_sets(sets: Sequence[str]) -> list[_Given]:
    found = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise ConfigError(f'--set "{text}" is not of the form section.key=value')
        found.append(_Given(key.strip(), value, "--set", True))
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else '; "holdmq config keys" lists all keys'


def _checked(item: _Given, field: FieldInfo) -> Any:
    annotation: Any = field.annotation
    kind: TypeAdapter[Any] = TypeAdapter(Annotated[annotation, field])
    value = _from_text(item, annotation) if item.text else item.value
    try:
        return kind.validate_python(value, strict=not item.text)
    except ValidationError as error:
        problem = error.errors()[0]
        table = _table_of(annotation)
        if table is not None and problem["loc"]:
            raise _table_error(item, table, problem) from error
        message = problem["msg"]
        given = "(not shown)" if "Secret" in str(annotation) else json.dumps(item.value, default=str)
        raise ConfigError(
            f'the value {given} of "{item.key}" in {item.source} is wrong: {message[0].lower()}{message[1:]}'
        ) from error


def _table_error(item: _Given, table: type[Section], problem: Any) -> ConfigError:
    """The sentence for a wrong table in a list: which one, by position and name, and which of its keys."""
    index, *path = problem["loc"]
    given = problem["input"]
    whole = given if not path or problem["type"] == "missing" else None
    name = whole.get("name") if isinstance(whole, dict) else None
    key = ".".join([f"{item.key}[{index}]", *map(str, path)])
    called = f" (named {json.dumps(name)})" if isinstance(name, str) else ""
    if problem["type"] == "extra_forbidden":
        nearest = _nearest(str(path[-1]), table.model_fields)
        return ConfigError(f'unknown key "{key}" in {item.source}{nearest}')
    if problem["type"] == "missing":
        return ConfigError(f'the key "{key}" is missing in {item.source}{called}')
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if whole is not None:
        return ConfigError(f'"{key}"{called} in {item.source} is wrong: {message}')
    return ConfigError(
        f'the value {json.dumps(given, default=str)} of "{key}" in {item.source} is wrong: {message}'
    )


def _from_text(item: _Given, annotation: Any) -> Any:
    text = str(item.value).strip()
    if "list" in str(annotation):
        if not text.startswith("["):
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f'the value of "{item.key}" in {item.source} is no JSON array: {error}'
            ) from error
    if not text and "None" in str(annotation):
        return None
    return text
