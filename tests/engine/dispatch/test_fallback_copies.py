"""Kernels of the CPU see what tensors of the device share, and what they write or show arrives, declared or not."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.dispatch.fallback_copies import Copies

library = torch.library.Library("memory_of_a_test", "DEF")
OPS: Any = torch.ops.memory_of_a_test

library.define("double_and_add(Tensor(a!) x, Tensor[] others) -> Tensor")
library.impl("double_and_add", lambda x, others: x.mul_(2).sum() + sum(other.sum() for other in others), "CPU")
library.define("rows_from(Tensor(a) x, int first) -> Tensor(a)")
library.impl("rows_from", lambda x, first: x[first:], "CPU")
library.define("count_unseen(Tensor x, Tensor calls) -> Tensor")


def _count_unseen(x: Tensor, calls: Tensor) -> Tensor:
    calls.numpy()[...] += 1  # of which PyTorch knows nothing, as of what C writes
    return x * 2


library.impl("count_unseen", _count_unseen, "CPU")
library.define("swap_unseen(Tensor x, Tensor y) -> ()")


def _swap_unseen(x: Tensor, y: Tensor) -> None:
    a, b = x.numpy(), y.numpy()
    a[...], b[...] = b.copy(), a.copy()


library.impl("swap_unseen", _swap_unseen, "CPU")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Their first call warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _counted(x: Tensor) -> tuple[Tensor, ...]:
    calls = torch.zeros(3, device=x.device)
    before = calls.clone()
    return OPS.count_unseen(x, calls), OPS.count_unseen(x, calls[1:]), calls, before


def _swapped(x: Tensor) -> Tensor:
    OPS.swap_unseen(x[0], x[1])
    return x


def _grown_view(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = OPS.rows_from(x[:, 1:], 1)
    return rows.add_(10), OPS.rows_from(x, 0).mul_(2)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "the written one and a view of it": lambda x: OPS.double_and_add(x[0], [x, x[:, 1], x.t()]),
    "the written one twice": lambda x: OPS.double_and_add(x, [x, x]),
    "another dtype": lambda x: (y := x + 1, OPS.double_and_add(y, [y.view(torch.int32)])),
    "views with gaps": lambda x: OPS.double_and_add(x[:, ::2], [x[1:, 1:]]),
    "complex views": lambda x: (z := torch.complex(x, x + 1), OPS.double_and_add(z.real, [z.imag, z.real])),
    "a view": lambda x: OPS.rows_from(x, 1).add_(1),
    "a view of a view": _grown_view,
    "all of it": lambda x: OPS.rows_from(x, 0).add_(1),
    "nothing of it": lambda x: OPS.rows_from(x, 2).add_(1),
    "unseen": _counted,
    "unseen through views": _swapped,
}


# AOTAutograd refuses arguments that show one memory in two dtypes.
CASES = [(name, way) for name in PROGRAMS for way in WAYS if (name, way) != ("another dtype", "openxla")]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_memory_is_shared_as_on_the_cpu(name: str, way: str) -> None:
    theirs, ours = torch.arange(8.0).reshape(2, 4), torch.arange(8.0, device="xla").reshape(2, 4)
    with made_to_run(way, PROGRAMS[name]) as run:
        for _ in range(4):
            expected, found = PROGRAMS[name](theirs), run(ours)
            leaves = zip(*map(torch.utils._pytree.tree_leaves, ((found, ours), (expected, theirs))), strict=True)
            for mine, yours in leaves:
                torch.testing.assert_close(mine.cpu(), yours, rtol=0, atol=0)


def test_one_tensor_alone_is_fetched_without_the_rest_of_its_storage() -> None:
    x, fetched = torch.arange(8.0, device="xla"), []

    def fetch(tensor: Tensor) -> Tensor:
        fetched.append(tensor.numel())
        return tensor.cpu()

    Copies(fetch, [x[:2]], [])
    Copies(fetch, [x[:2], x[1:3]], [])
    Copies(fetch, [x[:2]], [], whole=True)
    assert fetched == [2, 8, 8]
