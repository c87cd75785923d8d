"""A barrier for the compiler: values stay, the program says that they belong together."""

import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine.tensor.optimization_barrier import put_barrier


def test_the_barrier_is_in_the_program_and_changes_no_value() -> None:
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    y = torch.ones(3, dtype=torch.int64, device="xla")
    put_barrier([x, y])
    total = x.sum() + y.sum()
    assert "optimization_barrier" in xm.get_stablehlo([total])
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert y.tolist() == [1, 1, 1]


def test_a_view_behind_a_barrier_still_writes_to_its_base() -> None:
    base = torch.zeros(4, device="xla")
    view = base[1:3]
    put_barrier([view, base])
    view.add_(1)
    assert base.tolist() == [0, 1, 1, 0]


def test_the_same_barrier_again_compiles_nothing_new() -> None:
    def step() -> None:
        x = torch.ones(5, device="xla")
        put_barrier([x])
        x.mul_(2)
        torch_xla.sync()
        assert x[0].item() == 2

    torch_xla.sync()  # what an earlier test recorded and garbage still holds is in no program of these
    step()
    compiled = torch_xla.runtime.get_num_cached_compilation_graph()
    step()
    assert torch_xla.runtime.get_num_cached_compilation_graph() == compiled


def test_nothing_to_put_behind_it() -> None:
    put_barrier([])
