"""An exported program as StableHLO."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._engine.export import exported_program
from torch_xla._engine.export.exported_program import Options, convert
from torch_xla._engine.export.saved_model import VariableType
from torch_xla.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo


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
    view = exported_program.copying_view(torch.ones(2, 3).t(), [6])
    assert view.shape == (6,) and exported_program.copying_view(torch.ones(2, 3), [6]) is NotImplemented


def test_a_mode_that_decomposes_views_asks_once_for_each() -> None:
    asked = []

    def counted(tensor: torch.Tensor, size: list[int]) -> Any:
        asked.append(size)
        return exported_program.copying_view(tensor, size)

    table = {torch.ops.aten.view.default: counted}
    trace = make_fx(torch.ops.aten.view.default, decomposition_table=table, tracing_mode="fake")
    columns = torch.arange(6).view(2, 3).t()
    assert trace(columns, [6])(columns, [6]).tolist() == [0, 3, 1, 4, 2, 5]
    assert asked == [[6], [6]], "and once for the copy"


CHANGING: dict[str, tuple[Any, Any]] = {
    "nearest pixels": (lambda x: F.interpolate(x, scale_factor=2), lambda n: torch.randn(n, 3, 4, 4)),
    "mixed pixels": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda n: torch.randn(n, 3, 4, 4)),
    "pixels of a size": (lambda x: F.interpolate(x, size=(7, 5), mode="bicubic"), lambda n: torch.randn(n, 3, 4, 4)),
    "parts of a pixel": (lambda x: F.interpolate(x, scale_factor=1.5), lambda n: torch.randn(n, 3, 5)),
    "classes": (lambda x: F.one_hot(x, num_classes=5), lambda n: torch.arange(n) % 5),
    "inverse": (torch.linalg.inv, lambda n: torch.randn(n, 3, 3) + 4 * torch.eye(3)),
    "factor": (lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3)), lambda n: torch.randn(n, 3, 3)),
    "greater size": (lambda x: x * torch.sym_max(x.shape[0], 5), lambda n: torch.randn(n, 3)),
    "filled up": (
        lambda x: F.pad(x, (0, 0, 0, torch.sym_max(x.shape[0], 5) - x.shape[0])),
        lambda n: torch.randn(n, 3),
    ),
    "root of the size": (lambda x: x * x.shape[0] ** 0.5, lambda n: torch.randn(n, 3)),
    "twice the size": (
        lambda x: torch.cat([x, x]).reshape(2 * x.shape[0], -1) + x.reshape(2 * x.shape[0], -1).repeat(1, 2),
        lambda n: torch.randn(n, 4),
    ),
}


class Calling(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", CHANGING)
def test_models_of_a_batch_that_changes(name: str, tmp_path: Any) -> None:
    function, made = CHANGING[name]
    shapes = ({0: torch.export.Dim("batch", max=64)},)
    program = exported_program_to_stablehlo(torch.export.export(Calling(function), (made(4),), dynamic_shapes=shapes))
    program.save(tmp_path)
    loaded = StableHLOGraphModule.load(tmp_path)
    for size in (2, 5, 12):
        x = made(size)
        torch.testing.assert_close(loaded(x).cpu(), function(x), rtol=1e-4, atol=1e-4)


def written(*key: Any) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[key] = 0.0
        y[key] += x[key] * 2
        return y

    return function


def rows(n: int) -> torch.Tensor:
    return torch.randn(n, 6)


def truths(n: int) -> torch.Tensor:
    return torch.randn(n, 6) > 0


def counts(n: int) -> torch.Tensor:
    return torch.arange(6 * n).reshape(n, 6) % 7


# Of each family of operators, one whose rule asks for a size, or takes one for a number.
OPEN: dict[str, tuple[Any, Any]] = {
    "a size less a tensor": (lambda x: x.shape[0] - x, rows),
    "a size less truth values": (lambda x: x.shape[0] - x.float() + (x + x.shape[0]) * (x == x.shape[0]), truths),
    "a size to a power": (lambda x: x.shape[0] ** (x / 6), rows),
    "to the power of a size": (lambda x: x ** x.shape[0], counts),
    "divided by a size": (
        lambda x: torch.div(x, x.shape[0], rounding_mode="trunc") + x.shape[0] // (x.abs() + 1),
        rows,
    ),
    "remainder of a size": (lambda x: x.shape[0] % (x.abs() + 0.5), rows),
    "shifted by a size": (lambda x: (x << x.shape[0]) + (x.shape[0] << x), counts),
    "logarithm of a size": (lambda x: torch.xlogy(x, x.shape[0]), rows),
    "bounded by a size": (lambda x: x.clamp(min=x.shape[0]), truths),
    "lists and a size": (lambda x: torch._foreach_mul([x, x + 1], x.shape[0]), rows),
    "written from one on": (written(slice(1, None)), rows),
    "written up to the last": (written(slice(None, -1)), rows),
    "written by twos": (written(slice(1, None, 2)), rows),
    "written at the end": (written(slice(-2, None)), rows),
    "written in columns": (written(slice(None), slice(1, 4)), rows),
    "written in a part": (lambda x: torch.slice_scatter(x, x[: x.shape[0] // 2] + 1, 0, 0, x.shape[0] // 2), rows),
    "the last but one": (lambda x: x.select(0, -2) + x[1], rows),
    "diagonal": (lambda x: (x.diagonal(-1), x.diagonal(1), (x @ x.T).diagonal(1)), rows),
    "strides": (lambda x: (x * 2).as_strided((x.shape[0] - 1, 2), (6, 1), 6), rows),
    "strides of columns": (lambda x: (x.T * 2).as_strided((x.shape[0], 3), (1, x.shape[0])), rows),
    "the largest": (lambda x: x.topk((x.shape[0] + 1) // 2, 0), rows),
    "the largest of all": (lambda x: x.kthvalue(x.shape[0], 0), rows),
    "median": (lambda x: x.T.median(1), counts),
    "insertion points": (lambda x: torch.searchsorted(x.sort(0).values.T.contiguous(), torch.zeros(6, 1)), rows),
    "members": (lambda x: torch.isin(torch.arange(6), x), counts),
    "kernel of one": (lambda x: F.conv1d(x.T[None], torch.ones(2, 6, 1)), rows),
    "kernel of one in groups": (lambda x: F.conv1d(x.T[None], torch.ones(4, 3, 1), stride=2, groups=2), rows),
    "transposed kernel of one": (lambda x: F.conv_transpose1d(x.T[None], torch.ones(6, 2, 1), padding=0), rows),
    "mean with margins": (lambda x: F.avg_pool1d(x.T[None], 2, padding=1), rows),
    "mean without margins": (lambda x: F.avg_pool1d(x.T[None], 3, 2, 1, True, False), rows),
    "patches": (lambda x: F.unfold(x.T[None, None], 3, padding=1), rows),
    "mean of many parts": (lambda x: F.adaptive_avg_pool2d(x.T[None], (2, x.shape[0] + 1)), rows),
    "mean of two parts": (lambda x: F.adaptive_avg_pool1d(x.T[None], 2), rows),
    "maximum of two parts": (lambda x: F.adaptive_max_pool1d(x.T[None], 2), rows),
}
OFTEN = ("a size less a tensor", "written from one on", "kernel of one")


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in OPEN]
)
def test_operators_that_ask_for_a_size_take_one_that_changes(name: str) -> None:
    function, made = OPEN[name]
    found = converted(Calling(function), made(4), dynamic_shapes=({0: torch.export.Dim.AUTO},)).stablehlo_funcs[0]
    assert found.meta.input_signature[0].dynamic_dims == [0]
    for size in (4, 5, 12):
        x = made(size)
        with jax.enable_x64(True):
            ours = [torch.tensor(np.asarray(each)) for each in jax.tree.leaves(found.exported.call(x.numpy()))]
        theirs = torch.utils._pytree.tree_leaves(function(x))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


RESIZING: dict[str, Any] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=True),
    "to a size": lambda x: F.interpolate(x, size=(7, 5), mode="bilinear"),
    "like another": lambda x: F.interpolate(x.mean(2, keepdim=True), size=x.shape[2:], mode="bilinear"),
}


@pytest.mark.parametrize("name", RESIZING)
def test_images_of_a_size_that_changes_are_resized(name: str, tmp_path: Any) -> None:
    function = RESIZING[name]
    shapes = (
        {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=2), 3: torch.export.Dim("width", min=2)},
    )
    exported = torch.export.export(Calling(function), (torch.randn(2, 3, 8, 6),), dynamic_shapes=shapes)
    exported_program_to_stablehlo(exported).save(tmp_path)
    loaded = StableHLOGraphModule.load(tmp_path)
    for size in ((2, 3, 8, 6), (3, 3, 5, 7), (1, 3, 12, 4)):
        x = torch.randn(size)
        torch.testing.assert_close(loaded(x).cpu(), function(x), rtol=1e-4, atol=1e-5)


def test_a_scale_that_is_no_simple_fraction_is_refused_for_a_size_that_changes() -> None:
    resize = Calling(lambda x: F.interpolate(x, scale_factor=1.3))
    shapes = ({2: torch.export.Dim("height", min=2)},)
    exported = torch.export.export(resize, (torch.zeros(1, 3, 8, 8),), dynamic_shapes=shapes)
    with pytest.raises(NotImplementedError, match=r"resized by 1.3, .*F.interpolate\(x, size=...\)"):
        exported_program_to_stablehlo(exported)


def test_bytes_of_a_size_that_changes_are_resized_as_floats() -> None:
    shapes = ({2: torch.export.Dim("height", min=2)},)
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    exported = torch.export.export(Calling(RESIZING["bilinear"]), (images,), dynamic_shapes=shapes)
    with pytest.raises(NotImplementedError, match=r"leave the height and the width fixed, or resize x.float\(\)"):
        exported_program_to_stablehlo(exported)
