"""States that are kept in the memory of another host: which one, and how they come back from there."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.api.distributed.test_memory_checkpoints import manager, restored, state
from tests.support import fleet
from torch_xla.experimental.distributed_checkpoint import _hosts, _keeper, _memory, _messages, _slots


def test_copies_go_to_other_hosts_and_machines_first() -> None:
    assert _hosts.holders_of("abc") == [1, 2, 0]
    assert _hosts.holders_of("aaab") == [3, 3, 3, 0]
    assert _hosts.holders_of(["a"]) == [None]
    homes = [_hosts.Home(machine, "folder", 1, inode) for machine, inode in (("a", 1), ("a", 2), ("b", 1), ("b", 2))]
    assert _hosts.holders_among(homes) == [2, 3, 0, 1]
    assert _hosts.holders_among(homes[:2]) == [1, 0]  # two agents of a machine
    assert _hosts.holders_among([homes[0], homes[0]]) == [None, None]


def test_a_folder_of_the_same_name_is_not_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    home = _hosts.home_of(tmp_path / "own")
    assert home.is_here()
    for other in (home._replace(inode=home.inode + 1), home._replace(folder=str(tmp_path / "none"))):
        assert not other.is_here()
    monkeypatch.setattr(_hosts, "MACHINE", tmp_path / "machine")
    _hosts.MACHINE.write_text("another")
    assert not home.is_here()


class Lost:
    """Two processes, each with a host's memory of its own: the files of one are in the other's reach, or not."""

    def __init__(self, folder: str, is_one_machine: bool) -> None:
        if not dist.is_initialized():
            dist.init_process_group("xla", init_method="xla://")
        self.folder, self.rank, self.before = Path(folder), dist.get_rank(), (_keeper.ROOT, _hosts.MACHINE)
        _keeper.ROOT = self.folder / str(self.rank)
        _keeper.ROOT.mkdir()
        if not is_one_machine:
            _hosts.MACHINE = self.folder / f"machine{self.rank}"
            _hosts.MACHINE.write_text(str(self.rank))
        self.kept, self.is_one_machine = manager(self.folder, every=100), is_one_machine

    @property
    def memory(self) -> _memory.Memory:
        assert self.kept._memory is not None
        return self.kept._memory

    def save(self, *steps: int) -> None:
        for step in steps:
            self.kept.save_async(step, state(10 * step + self.rank))
        self.kept.join()

    def lose(self, rank: int) -> None:
        """Lose the memory of the host of a process."""
        for path in self.memory.folder.glob("*.head") if self.rank == rank else ():
            path.unlink()

    def restored(self) -> tuple[int | None, str, str, int]:
        """Restore as a process that has begun again; return from where, with the number of warnings."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            again = manager(self.folder, every=100)
            assert (1 - self.rank in again._memory._held().reached) == self.is_one_machine  # type: ignore[union-attr]
            step, note, source = restored(again)
        return step, note, source, len(said)

    def end(self) -> None:
        for each in _keeper._keepers.values():
            each.kill()
            each.wait()
        _keeper._keepers.clear()
        _keeper.ROOT, _hosts.MACHINE = self.before


def lose_in_turn(folder: str, is_one_machine: bool) -> list[tuple[Any, ...]]:
    """Keep a state on two hosts, lose that of one and of the other, and return what each process restores."""
    lost, found = Lost(folder, is_one_machine), []
    try:
        lost.save(1, 2)
        for rank, damaged in ((0, False), (1, False), (1, True)):
            if not damaged:
                lost.lose(rank)
            if damaged and lost.rank == 0:  # the copy of the lost process
                slot, head = lost.memory._slot_at(1, 2)
                slot.commit(pickle.dumps(tuple(head._replace(sum=0))))
            found.append(lost.restored())
            if rank == 0:
                lost.kept = manager(Path(folder), every=100)
                lost.save(1, 2)
    finally:
        lost.end()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("is_one_machine", [True, False])
def test_what_a_host_lost_comes_from_another(is_one_machine: bool, tmp_path: Path) -> None:
    found = fleet.fleet_of(2).run(lose_in_turn, str(tmp_path), is_one_machine)
    assert [each[:2] for each in found] == [
        [(2, "20.0", "peer", 0), (2, "20.0", "memory", 0)],
        [(2, "21.0", "memory", 0), (2, "21.0", "peer", 0)],
    ]
    # The copy of process 1 is damaged, and its own is lost: the step before is the newest that all have.
    assert [each[2] for each in found] == [(1, "10.0", "memory", 1), (1, "11.0", "peer", 0)]


def change_a_byte_of_the_copy(folder: str, is_one_machine: bool) -> tuple[Any, ...]:
    """Lose the memory of process 0, and change its copy; return what is restored, and whether the copy is there."""
    lost = Lost(folder, is_one_machine)
    try:
        lost.save(1, 2)
        lost.lose(0)
        if lost.rank == 1:
            path = lost.memory._slot_at(0, 2)[0].data
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        found = lost.restored()
        return *found, [slot.data.exists() for slot in lost.memory._slots_of(0)]
    finally:
        lost.end()


@pytest.mark.slow
@pytest.mark.parametrize("is_one_machine", [True, False])
def test_a_copy_with_a_changed_byte_is_not_loaded(is_one_machine: bool, tmp_path: Path) -> None:
    found = fleet.fleet_of(2).run(change_a_byte_of_the_copy, str(tmp_path), is_one_machine)
    assert [each[:4] for each in found] == [(1, "10.0", "peer", 1), (1, "11.0", "memory", 0)]
    assert sorted(found[1][4]) == [False, True]  # the damaged one is given back


def save_after_a_loss(folder: str, is_one_machine: bool) -> list[float]:
    """Restore from the other process, save often, and return what the restored tensor shows."""

    def filled(value: int) -> dict[str, Any]:
        return {"w": torch.full((300_000,), float(value), device="xla")}

    lost = Lost(folder, is_one_machine)
    try:
        lost.kept.save(1, filled(10 + lost.rank))
        lost.lose(0)
        again, into, shown = manager(Path(folder), every=100), filled(0), []
        assert again.restore_latest(into) == 1
        for step in range(2, 7):
            again.save(step, filled(step))
            shown.append(float(into["w"].max() - into["w"].min() + into["w"][0]))
        return shown
    finally:
        lost.end()


@pytest.mark.slow
@pytest.mark.parametrize("is_one_machine", [True, False])
def test_what_came_from_another_host_does_not_change_with_later_saves(is_one_machine: bool, tmp_path: Path) -> None:
    found = fleet.fleet_of(2).run(save_after_a_loss, str(tmp_path), is_one_machine)
    assert found == [[10.0] * 5, [11.0] * 5]


def test_pieces_have_the_checksum_of_the_whole() -> None:
    data = torch.randint(256, (2 * _messages.PIECE + 8 * _slots._WORDS + 64,), dtype=torch.uint8)
    for end in (0, 64, _messages.PIECE, _messages.PIECE + 64, len(data)):
        found = _slots.Sum()
        for piece in data[:end].split(_messages.PIECE):
            found.add(piece)
        assert found.value() == _slots.sum_of(data[:end])
    with pytest.raises(AssertionError):
        found.add(data[:64])  # the last was no whole block
