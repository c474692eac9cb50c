"""What commands are given: options that several share, each declared once, and how they answer.

A command's function takes `Given` (or `Output`) as a parameter, and with it the options that are its fields;
so with every dataclass that several commands have in common, as the choices for a group.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer

from holdmq.cli.shown import say
from holdmq.config.model import Config
from holdmq.config.sources import ENV_CONFIG, load
from holdmq.names.visible_text import visible

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help=f"The TOML file; the variable {ENV_CONFIG} does the same.", show_default=False
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one key, as section.key=value; repeat it.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The MQTT client id.")]
QueuesPerBroker = Annotated[
    int,
    typer.Option(
        "--queues", min=0, max=1024, help="Queues on every broker; 0 = broker.topic_queues_default."
    ),
]
Search = Annotated[
    str, typer.Option("--search", metavar="TEXT", help="Only names with this in them, in capitals or not.")
]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Name topics and groups as this tenant does; client.tenant does the same.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Output:
    """How a command answers: in sentences and tables for people, or as JSON."""

    as_json: Json = False

    def tell(self, facts: Any, *sentences: object) -> None:
        """Print the facts for programs, or the sentences, a line each, for people."""
        if self.as_json:
            print_json(facts)
            return
        for sentence in sentences:
            say(sentence)

    def table(
        self, columns: Sequence[str], found: Sequence[R], cells: Callable[[R], Iterable[object]]
    ) -> None:
        """Print what was found: all of it as one JSON document, or a table with `cells` of each as a row.

        What is found are mappings, or rows that are named tuples.
        """
        if self.as_json:
            print_json([one if isinstance(one, Mapping) else cast(Any, one)._asdict() for one in found])
            return
        from rich.console import Console

        from holdmq.cli.plain_table import PlainTable

        table = PlainTable(*columns)
        for one in found:
            table.add_row(*map(str, cells(one)))
        Console().print(table)


@dataclass(frozen=True, slots=True)
class Given(Output):
    """What almost every command is given: where the configuration comes from, and how to answer."""

    config_file: ConfigFile = None
    sets: Sets = None

    def configuration(self, *more: str) -> Config:
        """Read the configuration that the options name, with `more` settings on top. Raises ConfigError."""
        return load(self.config_file, [*(self.sets or ()), *more])


@dataclass(frozen=True, slots=True)
class Asking(Given):
    """What a command is given that asks registries and brokers: of which cluster they are to be, too."""

    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="CLUSTER",
            help="Only brokers of this cluster; client.cluster if not given.",
            show_default=False,
        ),
    ] = None

    def configuration(self, *more: str) -> Config:
        """Read the configuration that the options name, with `more` settings on top. Raises ConfigError."""
        wanted = () if self.cluster is None else (f"client.cluster={self.cluster}",)
        return Given.configuration(self, *wanted, *more)


@dataclass(frozen=True, slots=True)
class GivenTenant(Asking):
    """What a command is given that names topics or groups: it may do so in a tenant's words."""

    tenant: Tenant = None

    def configuration(self, *more: str) -> Config:
        """Read the configuration as `Asking` does, and in it, as client.tenant, whose words names are in."""
        own = () if self.tenant is None else (f"client.tenant={self.tenant}",)
        return Asking.configuration(self, *own, *more)


class CommandGroup(typer.Typer):
    """Commands with one first word; `meaning` and `example` are what its help says."""

    def __init__(self, meaning: str, example: str) -> None:
        super().__init__(
            help=meaning,
            epilog=f"Example: {example}",
            no_args_is_help=True,
            rich_markup_mode="rich",
            add_completion=False,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def add(self, name: str, *, example: str, **settings: Any) -> Callable[[F], F]:
        """Make a function the command `name`; its docstring and the example are what its help says."""

        def register(function: F) -> F:
            self.command(name, epilog=f"Example: {example}", **settings)(_spread(function))
            return function

        return register

    def always(self, **settings: Any) -> Callable[[F], F]:
        """Make a function what runs before each command, and by itself when none follows."""

        def register(function: F) -> F:
            self.callback(invoke_without_command=True, **settings)(_spread(function))
            return function

        return register


def _spread(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that takes the fields of `function`'s dataclasses as parameters of its own.

    They come after the others, so that its own options are the first of its help.
    """
    own: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if not is_dataclass(kind):
            own.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))
            continue
        groups[name] = cast("type[Any]", kind)
        types = get_type_hints(kind, include_extras=True)
        shared[:0] = [
            inspect.Parameter(
                field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
            )
            for field in fields(kind)
        ]

    def spread(**values: Any) -> object:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        return function(**values, **made)

    parameters = [*own, *shared]
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    spread.__name__, spread.__doc__ = getattr(function, "__name__", "command"), function.__doc__
    return spread


def confirm(question: str) -> None:
    """Ask, on standard error; whoever does not say yes ends the command with exit code 1."""
    typer.confirm(visible(question), abort=True, err=True)


def print_json(value: Any) -> None:
    """Write `value` as one line of JSON to standard output, at once."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()
