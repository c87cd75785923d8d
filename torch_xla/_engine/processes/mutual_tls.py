"""Check, before the processes meet, that the certificates which JAX's settings name let them trust each other.

XLA's client repeats a refused handshake until its time is over, and its error has no reason. So this process tries a
handshake of Python's own first, which fails at once and has one.
"""

import socket
import ssl
from contextlib import closing
from typing import Any

import jax

from .. import config
from ..compat.names import jax_coordination as private
from ..errors import PeerError

_NEEDED = ("mtls_cert_file", "mtls_key_file", "mtls_ca_file", "mtls_peer_uri_prefix")


def settings() -> dict[str, str]:
    """Return JAX's settings of mutual TLS, empty where none is set. Raise if they cannot be honoured."""
    asked = config.mutual_tls()
    if asked and "jax_mtls_cert_file" not in jax.config.values:
        raise RuntimeError(
            f"{asked[0]} asks for mutual TLS among the processes, and JAX {jax.__version__} has none: install JAX 0.12 "
            f"or newer, or unset the variable and keep the processes on a private network."
        )
    found = private.tls()
    missing = [name for name in _NEEDED if name not in found]
    if found and missing:
        raise ValueError(
            f"Mutual TLS among the processes needs {', '.join(f'JAX_{name.upper()}' for name in missing)} as well. "
            f"(The prefix of the peer's URI is needed because XLA's client reaches the service through a socket of its "
            f"own machine, so the name of the machine in a certificate cannot be compared.)"
        )
    if not found and private.refuses_plain():
        raise RuntimeError(
            "JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS is set, and no certificates are: set "
            f"{', '.join(f'JAX_{name.upper()}' for name in _NEEDED)}."
        )
    if found:
        _context(found)
    return found


def _context(found: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=found["mtls_ca_file"])
        context.load_cert_chain(found["mtls_cert_file"], found["mtls_key_file"])
    except OSError as error:  # `ssl.SSLError` is one
        files = ", ".join(f"JAX_{name.upper()}={found[name]}" for name in _NEEDED[:3])
        raise ValueError(f"The files for mutual TLS among the processes cannot be used ({error}): {files}") from error
    context.check_hostname = False  # the URI is compared instead
    context.set_alpn_protocols(["h2"])
    return context


def _alternatives(certificate: Any) -> Any:
    """Return the kinds and values of a certificate's alternative names, as `ssl` gives it."""
    return certificate.get("subjectAltName", ())


def check(address: str, found: dict[str, str], seconds: float) -> None:
    """Raise `PeerError` if this process and the service at `address` do not accept each other's certificates."""
    context = _context(found)
    host, _, port = address.rpartition(":")
    try:
        plain = socket.create_connection((host, int(port)), timeout=seconds)
        with closing(plain), context.wrap_socket(plain) as connection:
            # With TLS 1.3 the service answers a certificate that it refuses only after the handshake.
            if not connection.recv(1):
                raise ConnectionError("the service closed the connection, so it refused this certificate")
            presented = connection.getpeercert() or {}
    except OSError as error:
        raise PeerError(
            f"Mutual TLS with the service at {address} failed: {error}. All processes need certificates that one "
            f"authority signed, for servers and for clients, and this process has {found['mtls_cert_file']}."
        ) from error
    names = [str(value) for kind, value in _alternatives(presented) if kind == "URI"]
    if not any(name.startswith(found["mtls_peer_uri_prefix"]) for name in names):
        raise PeerError(
            f"The service at {address} has a certificate for {names or 'no URI'}, and JAX_MTLS_PEER_URI_PREFIX asks "
            f"for {found['mtls_peer_uri_prefix']!r}."
        )
