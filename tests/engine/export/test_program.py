"""An exported program as StableHLO."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from torch_xla._engine.export import program
from torch_xla._engine.export.bundle import VariableType
from torch_xla._engine.export.program import Options, convert


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.offsets = torch.tensor([0.5, 1.5], dtype=torch.bfloat16)
        self.turned = torch.tensor([1j, 2.0]).conj()

    def forward(self, x: torch.Tensor, factor: float = 2.0) -> Any:
        self.seen.add_(x.sum())  # type: ignore[operator]
        y = self.linear(x) * factor
        return y, None, (y.to(torch.bfloat16) + self.offsets, y * self.turned)


def converted(model: torch.nn.Module, *args: Any, dynamic_shapes: Any = None, **options: Any) -> Any:
    return convert(torch.export.export(model, args, dynamic_shapes=dynamic_shapes), Options(**options))


def test_what_goes_in_and_comes_out_is_described() -> None:
    model, x = Model(), torch.ones(4, 3)
    found = converted(model, x, 3.0)
    meta = found.stablehlo_funcs[0].meta
    kinds = [(each.type_, each.name or each.position) for each in meta.input_locations]
    assert (VariableType.PARAMETER, "linear.weight") in kinds and (VariableType.INPUT_ARG, 0) in kinds
    assert meta.written_buffers == ["seen"] and meta.constant_outputs == {"1": None}
    assert [(each.shape, each.dtype) for each in meta.output_signature] == [
        ([4, 2], "float32"),
        ([4, 2], "bfloat16"),
        ([4, 2], "complex64"),
    ]
    given = {"linear.weight": model.linear.weight, "linear.bias": model.linear.bias, "seen": torch.zeros(())}
    arrays = [given[e.name].detach().numpy() if e.name else x.numpy() for e in meta.input_locations]
    results = jax.tree.leaves(found.stablehlo_funcs[0].exported.call(*arrays))
    y, _, (half, conjugate) = model(x, 3.0)
    assert float(results[0]) == 12
    np.testing.assert_allclose(results[1], y.detach(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(results[2], np.float32), half.detach().float(), rtol=2e-2)
    np.testing.assert_allclose(results[3], conjugate.detach().numpy(), rtol=1e-5)


@pytest.mark.slow
def test_constants_are_baked_in_or_given() -> None:
    for inline in (True, False):
        found = converted(Model(), torch.ones(1, 3), inline_constants=inline)
        constants = [e for e in found.stablehlo_funcs[0].meta.input_locations if e.type_ is VariableType.CONSTANT]
        assert len(constants) == len(found.additional_constants) == (0 if inline else 2)
    assert converted(Model(), torch.ones(1, 3), export_weights=False).state_dict == {}


@pytest.mark.slow
def test_dynamic_sizes_keep_their_bounds() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    found = converted(torch.nn.Linear(3, 2), torch.ones(4, 3), dynamic_shapes=({0: batch},))
    meta = found.stablehlo_funcs[0].meta
    (symbol,) = {
        each.symbolic.partition(",")[0] for each in (*meta.input_signature, *meta.output_signature) if each.symbolic
    }
    assert sorted(meta.constraints) == [f"{symbol} <= 64", f"{symbol} >= 2"]
    assert meta.output_signature[0].shape == [-1, 2] and meta.output_signature[0].dynamic_dims == [0]


@pytest.mark.slow
def test_draws_come_from_a_key_among_the_constants() -> None:
    with pytest.warns(UserWarning, match="the exported program draws random numbers"):
        found = converted(torch.nn.Dropout(0.5), torch.ones(64))
    function = found.stablehlo_funcs[0].exported
    one, other = (jax.tree.leaves(function.call(np.ones(64, np.float32), np.full(4, n, np.uint32)))[0] for n in (1, 2))
    assert set(np.unique(one)) == {0.0, 2.0} and not np.array_equal(one, other)


class Writes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


def test_what_no_function_of_stablehlo_can_do_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="writes to its argument 'x'"):
        converted(Writes(), torch.ones(2))


def test_views_by_strides_are_read_from_dense_memory() -> None:
    class Strided(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_strided(x * 2, (2, 2), (1, 3), 1)

    x = torch.arange(6.0).reshape(2, 3)
    found = converted(Strided(), x).stablehlo_funcs[0].exported.call(x.numpy())
    np.testing.assert_array_equal(jax.tree.leaves(found)[0], Strided()(x))
    view = program.copying_view(torch.ones(2, 3).t(), [6])
    assert view.shape == (6,) and program.copying_view(torch.ones(2, 3), [6]) is NotImplemented
