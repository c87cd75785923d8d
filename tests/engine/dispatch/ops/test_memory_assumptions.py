"""Operators whose results have the memory that their callers see on the CPU."""

import pytest
import torch

import torch_xla
from tests.support.twins import Program, cases, check_same
from torch_xla.debug import metrics
from torch_xla.experimental import eager_mode


def values(*size: int, d: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(d)


def unpooled(d: str) -> torch.Tensor:
    x = values(2, 3, 4, 6, d=d).to(memory_format=torch.channels_last)
    pooled, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    return torch.nn.functional.max_unpool2d(pooled, indices, 2)


def normalized(d: str) -> object:
    x, running = values(4, 3, 5, d=d), [values(3, d=d, seed=1), values(3, d=d, seed=2).exp()]
    trained = torch.ops.aten._batch_norm_with_update(x, None, None, *running, 0.1, 1e-5)
    evaluated = torch.native_batch_norm(x, None, None, *running, False, 0.1, 1e-5)
    outs = [torch.empty(0, device=d) for _ in range(3)]
    torch.native_batch_norm(x, None, None, *running, True, 0.1, 1e-5, out=outs)
    return trained, evaluated, running, outs


@cases(
    {
        "a transform into out=": lambda d: torch.fft.rfft(values(3, 4, 5, d=d), dim=1, out=_complex(d)),
        "a transform over three dimensions": lambda d: torch.fft.rfftn(values(3, 4, 5, d=d)),
        "an inverse into out=": lambda d: torch.fft.ihfft(values(3, 4, d=d), out=_complex(d)),
        "unpooling channels_last": unpooled,
        "batch norm": normalized,
    }
)
def test_results_have_the_memory_of_the_cpu(program: Program) -> None:
    check_same(program)
    assert not metrics.executed_fallback_ops()


def _complex(d: str) -> torch.Tensor:
    return torch.empty(0, dtype=torch.complex64, device=d)


@pytest.mark.parametrize("training", [True, False])
def test_rrelu_writes_its_noise_in_training_alone(training: bool) -> None:
    x, noise = values(4, 5, d="xla"), torch.zeros(4, 5, device="xla")
    result = torch.ops.aten.rrelu_with_noise(x, noise, 0.25, 0.75, training)
    slopes = torch.where(x > 0, 1.0, noise if training else 0.5)
    torch.testing.assert_close(result, x * slopes)
    assert bool((noise != 0).all()) == training
    assert set(metrics.executed_fallback_ops()) == {"aten::_local_scalar_dense"}  # the assertion before


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_gradients_of_attention_lie_as_on_the_cpu(dropout_p: float) -> None:
    strides = {}
    for d in ("cpu", "xla"):
        operands = [values(2, 3, size, 4, d=d).requires_grad_() for size in (5, 7, 7)]
        result = torch.nn.functional.scaled_dot_product_attention(*operands, dropout_p=dropout_p)
        strides[d] = [gradient.stride() for gradient in torch.autograd.grad(result.sum(), operands)]
    assert strides["xla"] == strides["cpu"]


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm", ["layer", "group", "batch"])
def test_statistics_of_narrow_floats_have_the_dtype_of_the_cpu(norm: str, parameters: torch.dtype) -> None:
    def program(d: str) -> object:
        x, w = values(2, 4, 3, d=d).bfloat16(), torch.ones(3 if norm == "layer" else 4, dtype=parameters, device=d)
        if norm == "layer":
            return torch.native_layer_norm(x, [3], w, w, 1e-5)
        if norm == "group":
            return torch.native_group_norm(x, w, w, 2, 4, 3, 2, 1e-5)
        return torch.native_batch_norm(x, w, w, w.clone(), w.clone(), True, 0.1, 1e-5)

    check_same(program, rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_attention_that_was_asked_for_no_weights_returns_none() -> None:
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().to("xla")
    x = values(2, 3, 8, d="xla")
    assert attention(x, x, x, need_weights=False)[1] is None
    assert attention(x, x, x)[1].shape == (2, 3, 3)


def repeated(name: str, diagonal: int) -> Program:
    def program(d: str) -> object:
        row, column, matrix = values(3, d=d) + 9, values(3, 1, d=d) + 9, values(3, 4, d=d) + 9
        shown = [row.expand(3, 3), column.expand(3, 4), matrix.expand(2, 3, 4), row[:1].expand(2, 2)]
        return [getattr(each, name)(diagonal) for each in shown], row, column, matrix

    return program


@pytest.mark.parametrize("name", ["tril_", "triu_"])
@pytest.mark.parametrize("diagonal", [-1, 0, 1, 5])
def test_a_triangle_of_elements_that_are_shown_several_times_is_that_of_the_cpu(name: str, diagonal: int) -> None:
    check_same(repeated(name, diagonal), versions=True)
    eager_mode(True)
    try:
        check_same(repeated(name, diagonal))
    finally:
        eager_mode(False)


def test_a_replay_writes_a_triangle_of_elements_that_are_shown_several_times() -> None:
    step = torch_xla.compile(lambda x: (x + 9).expand(3, 3).tril_(), replay=True)
    for seed in range(4):
        x = values(3, d="cpu", seed=seed)
        assert torch.equal(step(x.to("xla")).cpu(), (x + 9).expand(3, 3).tril_())


def last_written(name: str, x: torch.Tensor, out: torch.Tensor, diagonal: int) -> None:
    """Write a triangle row by row, and in each row what is outside of it first."""
    *batch, rows, columns = x.shape
    for matrix, target in zip(x.reshape(-1, rows, columns), out.expand(*batch, rows, columns), strict=True):
        for row in range(rows):
            beyond = [column - row - diagonal for column in range(columns)]
            inside = [each <= 0 if name == "tril" else each >= 0 for each in beyond]
            for column in sorted(range(columns), key=lambda c: inside[c]):
                target[row, column] = matrix[row, column] if inside[column] else 0


@pytest.mark.parametrize("name", ["tril", "triu"])
@pytest.mark.parametrize("diagonal", [-1, 0, 1, 5])
@pytest.mark.parametrize("size", [(1, 3, 1), (1, 1, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 1)], ids=str)
def test_a_triangle_may_be_written_to_elements_that_out_shows_several_times(
    name: str, diagonal: int, size: tuple[int, ...]
) -> None:
    x, expected, found = values(2, 3, 4, d="cpu"), torch.ones(size), torch.ones(size, device="xla")
    last_written(name, x, expected.expand(2, 3, 4), diagonal)
    out = found.expand(2, 3, 4)
    assert getattr(torch, name)(x.to("xla"), diagonal, out=out) is out
    assert torch.equal(found.cpu(), expected)


def test_weights_are_brought_into_the_range_of_halves_in_place() -> None:
    for device in ("cpu", "xla"):
        weight = torch.tensor([[1e9, -1e9, 2.0, 1e-9, float("inf"), 65505.0]], device=device)
        result = torch.ops.aten._saturate_weight_to_fp16(weight)
        assert result.tolist() == weight.tolist() == torch.tensor([[65504, -65504, 2, 1e-9, 65504, 65504]]).tolist()
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Long"):
        torch.ops.aten._saturate_weight_to_fp16(torch.tensor([[1, 2]], device="xla"))
