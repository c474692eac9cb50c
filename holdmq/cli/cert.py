"""``holdmq cert ca | issue | show``: a development authority, and certificates by it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdmq.cli.options import CommandGroup, Output
from holdmq.errors import StartupError

if TYPE_CHECKING:
    from holdmq.credentials.certificates import CertificateFiles

app = CommandGroup(
    "Certificates for TLS between HoldMQ's processes: a development authority, and what it signs.",
    "holdmq cert ca && holdmq cert issue broker-0 --host 127.0.0.1 --host localhost",
)

Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Directory of the PEM files.")]
DIRECTORY = Path("holdmq-certs")


@app.add("ca", example="holdmq cert ca --dir holdmq-certs")
def ca(
    output: Output,
    directory: Directory = DIRECTORY,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days that it lasts.")] = 3650,
) -> None:
    """Make a certificate authority; it is never replaced."""
    files = _certificates().make_authority(directory, days)
    _say(files, output, f"the authority is {files.cert}; keep {files.key} away from everybody")


@app.add("issue", example="holdmq cert issue broker-0 --host broker-0.internal --host 10.0.0.5")
def issue(
    output: Output,
    name: Annotated[str, typer.Argument(help="Name of the certificate and of its files.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or IP address of a server that shows it; repeat it.", show_default=False
        ),
    ] = None,
    directory: Directory = DIRECTORY,
    days: Annotated[int, typer.Option(min=1, max=825, help="Days that it lasts.")] = 90,
) -> None:
    """Make a certificate for a server or a client, in place of an earlier one of that name."""
    files = _certificates().issue(directory, name, host or (), dt.timedelta(days=days))
    _say(files, output, f"{files.cert} and {files.key} last {days} days")


@app.add("show", example="holdmq cert show holdmq-certs/broker-0.pem")
def show(
    output: Output, file: Annotated[Path, typer.Argument(metavar="FILE.pem", help="The certificate.")]
) -> None:
    """Print whom a certificate names, who signed it and how long it lasts."""
    facts = _certificates().describe(file)
    output.tell(facts, *(f"{name:8} {value}" for name, value in facts.items()))


def _certificates() -> Any:
    try:
        from holdmq.credentials import certificates
    except ModuleNotFoundError as error:
        raise StartupError(
            f"holdmq cert needs the package {error.name}; install it: pip install 'holdmq[tls]'"
        ) from error
    return certificates


def _say(files: CertificateFiles, output: Output, sentence: str) -> None:
    output.tell({"cert": str(files.cert), "key": str(files.key)}, sentence)
