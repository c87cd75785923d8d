"""Certificates for a test: an authority, and what it signs. They need the `openssl` command."""

import shutil
import subprocess
from pathlib import Path

import pytest


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def made(folder: Path, uri: str = "spiffe://job.example/worker", authority: str = "ca") -> dict[str, str]:
    """Return JAX's settings of mutual TLS for a new certificate for `uri`, signed by the authority of this name."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    if not (folder / f"{authority}.pem").exists():
        files = ("-keyout", f"{authority}.key", "-out", f"{authority}.pem")
        _openssl(folder, "req", "-x509", *key, *files, "-subj", f"/CN={authority}", "-days", "2")
    (folder / "extensions").write_text(f"subjectAltName=URI:{uri}\nextendedKeyUsage=serverAuth,clientAuth\n")
    name = f"{authority}-{len(list(folder.iterdir()))}"
    _openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=process")
    signed_by = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem", "-days", "2", "-extfile",
        "extensions",
    )  # fmt: skip
    return {
        "mtls_cert_file": str(folder / f"{name}.pem"),
        "mtls_key_file": str(folder / f"{name}.key"),
        "mtls_ca_file": str(folder / f"{authority}.pem"),
        "mtls_peer_uri_prefix": uri.rpartition("/")[0] + "/",
    }
