"""`torch.distributed` finds the backend, and the processes of a program find each other."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from torch_xla._engine.compat.names import torch_distributed
from torch_xla._engine.distributed import init_process_group
from torch_xla._engine.processes import identity


def test_one_process_meets_itself_once() -> None:
    meeting = init_process_group.meet("xla://")
    store, rank, count = next(meeting)
    assert (rank, count) == (0, 1) and isinstance(store, dist.HashStore)
    store.set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(RuntimeError, match="do not meet a second time"):
        next(meeting)


def test_a_rank_that_is_not_this_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "process_count", lambda: 4)
    monkeypatch.setattr(identity, "process_index", lambda: 1)
    made: list[tuple[int, list[int]]] = []

    def group(rank: int, ranks: list[int], timeout: object, store: object) -> object:
        made.append((rank, ranks))
        return made

    def create(rank: int, size: int, ranks: tuple[int, ...] = ()) -> None:
        options = SimpleNamespace(
            group_rank=rank, group_size=size, global_ranks_in_group=list(ranks), timeout=None, store=None
        )
        init_process_group._create(group, options)  # type: ignore[arg-type]

    create(1, 4)
    create(0, 2, (1, 3))
    assert made == [(1, [0, 1, 2, 3]), (0, [1, 3])]
    for rank, size, ranks in ((0, 4, ()), (0, 2, (0, 3)), (1, 5, ()), (1, 2, (3, 9))):
        with pytest.raises(RuntimeError, match=rf"rank {rank} of {size} was asked for, and this is process 1 of 4"):
            create(rank, size, ranks)


def test_the_backend_is_registered_once() -> None:
    init_process_group.register()
    init_process_group.register()
    assert torch_distributed.Backend.backend_capability["xla"] == ["xla"] and dist.is_backend_available("xla")
