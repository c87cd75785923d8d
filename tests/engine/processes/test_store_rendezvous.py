"""How processes meet, played by threads at one store."""

import json
import socket
import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from torch_xla._engine.errors import PeerError
from torch_xla._engine.processes import coordination, store_rendezvous
from torch_xla._engine.processes.identity import Place


@pytest.fixture(scope="module")
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def stores(server: TCPStore, count: int) -> list[Any]:
    """Connections to one new store: each waits by itself."""
    name = uuid.uuid4().hex
    return [
        PrefixStore(name, TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=200)))
        for _ in range(count)
    ]


def meet(places: list[Place], connections: list[Any], seconds: float = 15) -> list[Any]:
    """Return the result or the error of each of these processes."""
    found: list[Any] = [None] * len(places)

    def one(number: int) -> None:
        try:
            found[number] = store_rendezvous.arrive(connections[number], places[number], seconds, lambda: "address")
        except PeerError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_processes_meet_at_a_store_in_which_an_earlier_start_left_its_words(
    server: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    connections = stores(server, 3)
    places = [Place(index, 3) for index in range(3)]
    first, second = meet(places, connections), meet(places, connections)
    assert len({met.attempt for met in first}) == len({met.attempt for met in second}) == 1
    assert first[0].attempt != second[0].attempt
    assert {met.address for met in second} == {"address"}
    assert all(met.everyone == second[0].everyone and len(met.everyone) == 3 for met in second)


def test_who_does_not_come_is_named(server: TCPStore) -> None:
    places = [Place(0, 4), Place(2, 4)]
    for _ in range(5):  # a thread may begin late where others have the cores: then the other waits for it, too
        met = meet(places, stores(server, 2), seconds=1)
        if all("for processes 1, 3 to start" in said for said in met):
            break
    for index, said in zip((0, 2), met, strict=True):
        assert f"Process {index} of 4 waited 1 s for processes 1, 3 to start." in said
        assert "WORLD_SIZE" in said and "DIST_SERVICE_START_TIMEOUT_IN_SEC" in said


@pytest.mark.parametrize("away", [0, 1])
def test_who_has_ended_without_coming_is_not_waited_for(
    away: int, server: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_rendezvous, "_LOOK", 0.1)
    own, its = stores(server, 2)
    store_rendezvous.stay_away(its, Place(away, 2))
    with pytest.raises(PeerError, match=f"^Process {away} of 2 ended and did not use the device, which process"):
        store_rendezvous.arrive(own, Place(1 - away, 2), 600, lambda: "address")


def test_processes_that_think_of_other_numbers_are_told(server: TCPStore) -> None:
    said = meet([Place(0, 2), Place(1, 3)], stores(server, 2))
    assert said[0] == "Process 0 is one of 2, and process 1 one of 3: give all the same WORLD_SIZE."
    assert said[1] == "Process 1 is one of 3, and process 0 one of 2: give all the same WORLD_SIZE."


def test_a_second_process_of_one_rank_is_refused(server: TCPStore) -> None:
    connections = stores(server, 3)
    meet([Place(0, 2), Place(1, 2)], connections[:2])
    with pytest.raises(PeerError, match=rf"Process 1 of 2 is there already \(process \d+ on {socket.gethostname()}\)"):
        store_rendezvous.arrive(connections[2], Place(1, 2), 5, lambda: "address")


def test_unequal_versions_are_told(server: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {threading.get_ident(): ""}
    monkeypatch.setattr(
        store_rendezvous, "_versions", lambda: f"jax 0.{versions.setdefault(threading.get_ident(), str(len(versions)))}"
    )
    said = meet([Place(0, 2), Place(1, 2)], stores(server, 2))
    assert all("runs jax 0." in each and each.endswith("install the same versions.") for each in said), json.dumps(said)


def test_a_port_that_another_program_uses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("XLA_COORDINATOR_PORT", str(port))
        with pytest.raises(RuntimeError, match=rf"Cannot listen on 127.0.0.1:{port}: .*XLA_COORDINATOR_PORT chooses"):
            coordination.serve("127.0.0.1", 2)


def test_who_has_lost_the_store_is_told() -> None:
    class Lost:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("connection closed")

    said = str(store_rendezvous.missed(Lost(), Place(1, 2), "here", 3))
    assert said.startswith("Process 1 of 2 can no longer reach the store") and "process 0 or torchrun" in said


def test_a_process_without_the_mutual_tls_of_the_others_is_named(
    server: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: dict[int, dict[str, str]] = {}
    settings = [{"mtls_cert_file": "one.pem"}, {}]
    monkeypatch.setattr(
        store_rendezvous, "tls_settings", lambda: met.setdefault(threading.get_ident(), settings[len(met)])
    )
    said = meet([Place(0, 2), Place(1, 2)], stores(server, 2))
    assert said[0] == said[1] and " asks for mutual TLS, and process " in said[0], said
