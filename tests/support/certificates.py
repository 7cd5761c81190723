"""An authority of our own, and what servers need to show its certificates."""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = dt.timedelta(days=2)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
    expired: bool = False,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC) - (2 * LIFETIME if expired else dt.timedelta())
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LIFETIME)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


@dataclass(frozen=True)
class Authority:
    """Signs server certificates; `ca_file` is what a client has to trust."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def made(cls, folder: Path) -> Authority:
        """Make a new authority that keeps its files in a folder."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("test authority", key, _name("test authority"), key, authority=True)
        authority = cls(folder, key, certificate)
        Path(authority.ca_file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def ca_file(self) -> str:
        """The path of the authority's own certificate."""
        return str(self.folder / "ca.pem")

    def issue(self, host: str, *, expired: bool = False) -> tuple[Path, Path]:
        """Make a certificate for a host; returns the files of the certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(host, key, self.certificate.subject, self.key, authority=False, expired=expired)
        certificate_file, key_file = self.folder / f"{host}.pem", self.folder / f"{host}.key"
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return certificate_file, key_file

    def server(self, host: str = "localhost", *, expired: bool = False) -> ssl.SSLContext:
        """Return what a server needs to be this host."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(host, expired=expired))
        return context
