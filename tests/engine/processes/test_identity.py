"""Which process this is, of how many: as its launcher says, or torchrun, or it is alone."""

import pytest

from torch_xla._engine.processes import identity, spmd_mode
from torch_xla._engine.processes.identity import ALONE, Place

VARIABLES = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2000", "TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_place", None)
    monkeypatch.setattr(identity, "_meeting", None)
    monkeypatch.setattr(identity, "after_taking", [])


def test_a_process_that_nobody_started_with_others_is_alone() -> None:
    assert identity.place() is ALONE and ALONE.is_on_one_machine
    assert (identity.process_count(), identity.process_index(), identity.host_index()) == (1, 0, 0)
    assert (identity.replica_count(), identity.replica_index(), identity.local_replica_index()) == (1, 0, 0)


def test_torchrun_says_it_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    place = identity.place()
    assert place == Place(5, 8, 1, 4, 1, "10.0.0.1") and not place.is_on_one_machine
    assert identity.local_process_count() == 4 and identity.host_index() == 1
    assert identity.coordinator_address() == "10.0.0.1"
    monkeypatch.delenv("RANK")
    assert identity.place() is place  # it does not change


def test_who_starts_a_process_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    identity.take(Place(1, 2, 1, 2), lambda: "store", True)
    assert identity.process_index() == 1 and identity.place().is_on_one_machine
    meeting = identity.meeting()
    assert meeting is not None and meeting.store() == "store" and identity.is_served()
    assert (identity.replica_count(), identity.replica_index(), identity.local_replica_index()) == (2, 1, 1)


def test_where_all_devices_are_one_there_is_one_replica() -> None:
    identity.take(Place(1, 2, 1, 2), lambda: None, False)
    with spmd_mode.turned_on():
        assert (identity.replica_count(), identity.replica_index(), identity.local_replica_index()) == (1, 0, 0)
        assert identity.process_count() == 2


def test_who_listens_hears_that_a_place_was_taken() -> None:
    heard: list[bool] = []
    identity.after_taking.append(lambda: heard.append(identity.is_numbered()))
    identity.take(Place(1, 2, 1, 2), lambda: None, False)
    identity.take(Place(1, 2, 1, 2), lambda: None, True)  # a process of torch_xla.launch
    identity.take(Place(0, 1, 0, 1), lambda: None, False)
    assert heard == [True, False, False]
    identity.take(Place(1, 2, 1, 2), lambda: None, False)
    with spmd_mode.turned_on():
        assert not identity.is_numbered()
