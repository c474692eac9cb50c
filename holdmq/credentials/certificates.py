"""A development certificate authority, and certificates by it. Needs the extra `tls` (cryptography).

Keys are on the curve P-256; files are PEM, keys readable by their owner only. For more than one team
use a real authority: this one has neither revocation nor intermediate certificates.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdmq.errors import UsageError
from holdmq.files.private_file import replace_file, write_private

CA_NAME: Final = "ca"
CA_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 90
"""What public authorities give at most soon: whoever automates renewal does not mind, others notice early."""
_BACKDATED: Final = dt.timedelta(minutes=5)
"""Clocks of other machines may be a little behind."""
_NAME_CHARACTERS_MAX: Final = 64


class CertificateFiles(NamedTuple):
    """Where a certificate and its key were written."""

    cert: Path
    key: Path


def make_authority(directory: Path, days: int = CA_DAYS) -> CertificateFiles:
    """Make `ca.pem` and `ca-key.pem` in `directory`; UsageError if they exist: they are never replaced."""
    files = _files(directory, CA_NAME)
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists: another authority would make its certificates worthless")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "HoldMQ development authority")])
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(files, certificate, key)
    return files


def issue(
    directory: Path, name: str, hosts: Sequence[str] = (), lifetime: dt.timedelta | None = None
) -> CertificateFiles:
    """Make `NAME.pem` and `NAME-key.pem`, for servers on `hosts` and for clients, signed by `ca.pem` there.

    Hosts are DNS names and IP addresses; `name` itself is a name too, by which a keys file may know the
    client. Files of that name are replaced. `lifetime` None = CERTIFICATE_DAYS. Raises UsageError.
    """
    if not 1 <= len(name) <= _NAME_CHARACTERS_MAX or name == CA_NAME or "/" in name or name.startswith("."):
        raise UsageError(
            f"{name!r} cannot be a certificate's name: 1 to 64 characters, no slash, not {CA_NAME}"
        )
    authority = _files(directory, CA_NAME)
    try:
        ca = x509.load_pem_x509_certificate(authority.cert.read_bytes())
        ca_key = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"there is no authority in {directory} ({error}); make one: holdmq cert ca --dir {directory}"
        ) from error
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            ca.subject,
            key.public_key(),
            lifetime if lifetime is not None else dt.timedelta(days=CERTIFICATE_DAYS),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(
            x509.SubjectAlternativeName([_name_of(host) for host in hosts or (name,)]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    files = _files(directory, name)
    _write(files, certificate, key)
    return files


def describe(path: Path) -> dict[str, str]:
    """What a certificate says, in words: subject, names, issuer, from, until. UsageError if it is none."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no readable PEM certificate: {error}") from error
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = ", ".join(str(name.value) for name in names)
    except x509.ExtensionNotFound:
        hosts = ""
    return {
        "file": str(path),
        "subject": certificate.subject.rfc4514_string(),
        "names": hosts,
        "issuer": certificate.issuer.rfc4514_string(),
        "from": certificate.not_valid_before_utc.isoformat(),
        "until": certificate.not_valid_after_utc.isoformat(),
    }


def _files(directory: Path, name: str) -> CertificateFiles:
    return CertificateFiles(directory / f"{name}.pem", directory / f"{name}-key.pem")


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    # One that is over before it begins is how a test makes an expired one.
    begin = now - _BACKDATED + min(lifetime, dt.timedelta())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _write(files: CertificateFiles, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    files.cert.parent.mkdir(parents=True, exist_ok=True)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(files.key, pem)
    replace_file(files.cert, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
