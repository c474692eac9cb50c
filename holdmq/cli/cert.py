"""``holdmq cert ca | issue | show``: a development authority, and certificates by it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdmq.cli.options import Json, print_json
from holdmq.cli.shown import say
from holdmq.errors import StartupError

if TYPE_CHECKING:
    from holdmq.credentials.certificates import CertificateFiles

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Certificates for TLS between HoldMQ's processes: a development authority, and what it signs.",
    epilog="Example: holdmq cert ca && holdmq cert issue broker-0 --host 127.0.0.1 --host localhost",
)

Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Directory of the PEM files.")]
DIRECTORY = Path("holdmq-certs")


@app.command(epilog="Example: holdmq cert ca --dir certs")
def ca(
    directory: Directory = DIRECTORY,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days that it lasts.")] = 3650,
    as_json: Json = False,
) -> None:
    """Make a certificate authority; it is never replaced."""
    files = _certificates().make_authority(directory, days)
    _say(files, as_json, f"the authority is {files.cert}; keep {files.key} away from everybody")


@app.command(epilog="Example: holdmq cert issue broker-0 --host broker-0.internal --host 10.0.0.5")
def issue(
    name: Annotated[str, typer.Argument(help="Name of the certificate and of its files.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or IP address of a server that shows it; repeat it.", show_default=False
        ),
    ] = None,
    directory: Directory = DIRECTORY,
    days: Annotated[int, typer.Option(min=1, max=825, help="Days that it lasts.")] = 90,
    as_json: Json = False,
) -> None:
    """Make a certificate for a server or a client, in place of an earlier one of that name."""
    files = _certificates().issue(directory, name, host or (), dt.timedelta(days=days))
    _say(files, as_json, f"{files.cert} and {files.key} last {days} days")


@app.command(epilog="Example: holdmq cert show holdmq-certs/broker-0.pem")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE.pem", help="The certificate.")], as_json: Json = False
) -> None:
    """Print whom a certificate names, who signed it and how long it lasts."""
    facts = _certificates().describe(file)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        say(f"{name:8} {value}")


def _certificates() -> Any:
    try:
        from holdmq.credentials import certificates
    except ModuleNotFoundError as error:
        raise StartupError(
            f"holdmq cert needs the package {error.name}; install it: pip install 'holdmq[tls]'"
        ) from error
    return certificates


def _say(files: CertificateFiles, as_json: bool, sentence: str) -> None:
    if as_json:
        print_json({"cert": str(files.cert), "key": str(files.key)})
    else:
        say(sentence)
