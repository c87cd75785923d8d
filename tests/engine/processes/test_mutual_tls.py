"""Processes with certificates of one authority meet; others are refused at once, with the reason."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest

from tests.support.certificates import made
from torch_xla._engine.compat.names import jax_coordination
from torch_xla._engine.errors import PeerError
from torch_xla._engine.processes import mutual_tls

HAS_TLS = "jax_mtls_cert_file" in jax.config.values
VARIABLES = ("JAX_MTLS_CERT_FILE", "JAX_MTLS_KEY_FILE", "JAX_MTLS_CA_FILE", "JAX_MTLS_PEER_URI_PREFIX")

# Two processes reduce a sum. The product is imported by the path of the one that starts this.
PROGRAM = """
import torch, torch_xla, torch.distributed as dist
import torch_xla.distributed.xla_backend

def main(index):
    dist.init_process_group("xla", init_method="xla://")
    sum = torch.ones(2, device="xla") * (index + 1)
    dist.all_reduce(sum)
    assert sum.tolist() == [3, 3]
    print("reduced", flush=True)

if __name__ == "__main__":
    torch_xla.launch(main)
"""


@contextmanager
def served(found: dict[str, str]) -> Iterator[str]:
    """Yield the address of a server that asks for a certificate, as the service does, and answers one client."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=found["mtls_ca_file"])
    context.load_cert_chain(found["mtls_cert_file"], found["mtls_key_file"])
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            plain, _ = door.accept()
            try:
                with context.wrap_socket(plain, server_side=True) as connection:
                    connection.send(b"settings")
                    connection.recv(1)
            except OSError:
                plain.close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{door.getsockname()[1]}"
        thread.join()


def test_certificates_of_one_authority_are_accepted(tmp_path: Path) -> None:
    with served(made(tmp_path)) as address:
        mutual_tls.check(address, made(tmp_path), 20)


def test_a_process_with_another_authority_is_refused(tmp_path: Path) -> None:
    service, stranger = made(tmp_path), made(tmp_path, authority="other")
    with served(service) as address, pytest.raises(PeerError, match="certificate verify failed.* that one authority"):
        mutual_tls.check(address, stranger, 20)
    # It trusts the service, which does not trust it.
    trusting = {**stranger, "mtls_ca_file": service["mtls_ca_file"]}
    with served(service) as address, pytest.raises(PeerError, match=r"Mutual TLS with .* failed: .*certificates that"):
        mutual_tls.check(address, trusting, 20)


def test_a_service_of_another_job_is_refused(tmp_path: Path) -> None:
    own = made(tmp_path)
    for uri in ("spiffe://other.example/worker", "spiffe://job.example.evil/worker"):
        with (
            served(made(tmp_path, uri)) as address,
            pytest.raises(PeerError, match=f"certificate for .*{uri}.*asks for 'spiffe://job.example/'"),
        ):
            mutual_tls.check(address, own, 20)


@pytest.mark.skipif(HAS_TLS, reason="this JAX has mutual TLS")
@pytest.mark.parametrize("variable", [*VARIABLES, "JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS"])
def test_a_jax_without_it_does_not_ignore_that_it_is_asked_for(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "/files/one")
    with pytest.raises(RuntimeError, match=f"^{variable} asks for mutual TLS among the processes, and JAX 0.1"):
        mutual_tls.settings()


def test_settings_that_cannot_be_honoured_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mutual_tls.settings() == {}
    found = made(tmp_path)
    monkeypatch.setattr(jax_coordination, "tls", lambda: found)
    assert mutual_tls.settings() == found
    Path(found["mtls_key_file"]).write_text("nonsense")
    with pytest.raises(ValueError, match=r"^The files for mutual TLS .*JAX_MTLS_KEY_FILE="):
        mutual_tls.settings()
    del found["mtls_peer_uri_prefix"], found["mtls_key_file"]
    with pytest.raises(ValueError, match="needs JAX_MTLS_KEY_FILE, JAX_MTLS_PEER_URI_PREFIX as well"):
        mutual_tls.settings()
    monkeypatch.setattr(jax_coordination, "tls", dict)
    monkeypatch.setattr(jax_coordination, "refuses_plain", lambda: True)
    with pytest.raises(RuntimeError, match="^JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS is set, and no certificates"):
        mutual_tls.settings()


def test_the_service_gets_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def popen(arguments: list[str], **_: object) -> None:
        started.append(arguments)
        raise OSError("enough")

    found = made(tmp_path)
    monkeypatch.setattr(jax_coordination, "tls", lambda: found)
    monkeypatch.setattr(jax_coordination.subprocess, "Popen", popen)
    with pytest.raises(OSError, match="enough"):
        jax_coordination.Service("127.0.0.1", 0, 2, 20)
    assert json.loads(started[0][-1]) == found


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TLS, reason="needs JAX 0.12")
def test_processes_with_certificates_meet_and_one_without_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    certificates = made(tmp_path)
    variables = {f"JAX_{name.upper()}": value for name, value in certificates.items()}
    start = [sys.executable, str(tmp_path / "program.py")]
    settings = {**os.environ, **variables, "CPU_NUM_DEVICES": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(start, env=settings, capture_output=True, text=True, timeout=300)
    assert done.stdout.count("reduced") == 2, done.stderr
    settings["JAX_MTLS_PEER_URI_PREFIX"] = "spiffe://other.example/"
    done = subprocess.run(start, env=settings, capture_output=True, text=True, timeout=300)
    assert "Mutual TLS with the service at" in done.stderr and "reduced" not in done.stdout


# XLA's client ends its process when it is refused.
STRANGER = """
import sys
from torch_xla._engine.compat.names import jax_coordination
jax_coordination.connect(sys.argv[1], 0, 1, 3)
print("connected", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TLS, reason="needs JAX 0.12")
def test_the_service_refuses_a_client_without_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(tmp_path)
    monkeypatch.setattr(jax_coordination, "tls", lambda: found)
    service = jax_coordination.Service("127.0.0.1", 0, 1, 20)
    try:
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", STRANGER, service.address], env=settings, capture_output=True, text=True, timeout=300
        )
        assert done.returncode and "connected" not in done.stdout
        mutual_tls.check(service.address, found, 20)
    finally:
        service.shutdown()
