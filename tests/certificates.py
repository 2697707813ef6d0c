"""Certificates that this process trusts, for servers that tests start."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest


def server_context(folder: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """That of a server with a certificate of `host`, a name or an IP address, which is trusted from now on."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    address = x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file = folder / f"{host}.pem"
    file.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
