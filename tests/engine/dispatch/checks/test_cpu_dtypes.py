"""Dtypes that the CPU refuses are refused in its words, in every way of running; what accelerators take is taken."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.dispatch import op_schema
from torch_xla._engine.dispatch.checks import cpu_dtypes, cpu_errors

Call = Callable[[torch.Tensor, torch.Tensor], Any]

# Of two tensors of three int64 numbers.
REFUSED: dict[str, Call] = {
    "logaddexp": torch.logaddexp,
    "hypot": torch.hypot,
    "hypot in place": lambda a, b: a.clone().hypot_(b),
    "hypot into out": lambda a, b: torch.hypot(a, b, out=torch.empty_like(a)),
    "lerp": lambda a, b: torch.lerp(a, b, 1),
    "lerp of lists": lambda a, b: torch._foreach_lerp([a], [b], 1),
    "clamping of lists to a complex number": lambda a, b: torch._foreach_clamp_max([a.float()], 1j),
    "clamping of lists to complex numbers": lambda a, b: torch._foreach_maximum([a.float(), b.float()], [1.0, 1j]),
    "nextafter": torch.nextafter,
    "lcm of unlike dtypes": lambda a, b: torch.lcm(a, b.bfloat16()),
    "gcd of floats": lambda a, b: torch.gcd(a.float(), b.float()),
    "gcd of halves": lambda a, b: torch.gcd(a.half(), b.half()),
    "normal": lambda a, b: torch.normal(a, b.float()),
    "normal by complex deviations": lambda a, b: torch.normal(a.float(), b.to(torch.complex64)),
    "gelu": lambda a, b: torch.nn.functional.gelu(a),
    "softmax": lambda a, b: a.softmax(0),
    "cumsum into bool": lambda a, b: torch.cumsum(a.bool(), 0, out=a.new_empty(3, dtype=torch.bool)),
    "cholesky": lambda a, b: torch.cholesky(a.expand(3, 3)),
    "cholesky into int64": lambda a, b: torch.cholesky(torch.diag(a.float()), out=b.new_empty(3, 3)),
    "index_add of floats": lambda a, b: a.index_add(0, b - 4, b.float()),
    "index_copy of floats": lambda a, b: a.index_copy(0, b - 4, b.float()),
    "put of floats": lambda a, b: a.put(b - 4, b.float()),
    "layer norm by integers": lambda a, b: torch.nn.functional.layer_norm(a.bfloat16(), (3,), a, b),
    "max of complex": lambda a, b: a.to(torch.complex64).max(),
    "maximum of complex": lambda a, b: torch.maximum(a.to(torch.complex64), b.to(torch.complex64)),
    "product of truth values": lambda a, b: a.bool().expand(3, 3) @ b.bool().expand(3, 3),
    "Cholesky factor of bfloat16": lambda a, b: torch.linalg.cholesky(torch.diag(a.bfloat16())),
    "distances of halves": lambda a, b: torch.cdist(a[:, None].half(), b[:, None].half()),
    "sum of float8": lambda a, b: a.to(torch.float8_e4m3fn) + b.to(torch.float8_e4m3fn),
    "range of truth values": lambda a, b: torch.arange(3, dtype=torch.bool, device=a.device),
    "range of complex numbers": lambda a, b: torch.arange(3, dtype=torch.complex64, device=a.device),
    "range into complex numbers": lambda a, b: torch.arange(3, out=a.new_empty(3, dtype=torch.complex64)),
    "nothing, then linspace of uint16": lambda a, b: [
        torch.linspace(0, 1, steps, dtype=torch.uint16, device=a.device) for steps in (0, 2)
    ],
    "sum as uint64": lambda a, b: a.float().sum(0, dtype=torch.uint64),
    "product as complex32": lambda a, b: a.float().prod(0, dtype=torch.complex32),
    "cumsum as float8": lambda a, b: a.float().cumsum(0, dtype=torch.float8_e4m3fn),
    "cumprod as uint16": lambda a, b: a.double().cumprod(0, dtype=torch.uint16),
    "nansum as complex": lambda a, b: a.float().nansum(0, dtype=torch.complex64),
    "norm as float8": lambda a, b: torch.linalg.vector_norm(a.float(), dtype=torch.float8_e4m3fn),
    "loss of integers by pixel": lambda a, b: torch.nn.functional.nll_loss(
        a.expand(2, 2, 1, 3).to(torch.int16), (b - b).expand(2, 1, 3)
    ),
    "identity of uint16": lambda a, b: torch.eye(3, dtype=torch.uint16, device=a.device),
    "window of integers": lambda a, b: torch.hann_window(3, dtype=torch.int64, device=a.device),
    "draw of float8": lambda a, b: torch.randn(3, dtype=torch.float8_e5m2, device=a.device),
    "places in uint16": lambda a, b: a.to(torch.uint16).nonzero(),
    "places in uint16 into out": lambda a, b: torch.nonzero(a.to(torch.uint16), out=b),
    "unique_consecutive of float8": lambda a, b: a.to(torch.float8_e4m3fn).unique_consecutive(),
    "variance of float8": lambda a, b: a.to(torch.float8_e4m3fn).var(),
    "places in float8": lambda a, b: torch.bucketize(a.to(torch.float8_e4m3fn), b.float()),
    "elements of uint16 put by index": lambda a, b: a.to(torch.uint16).index_put((b - 4,), b.to(torch.uint16)),
    "elements of uint64 put without a check": lambda a, b: torch.ops.aten._unsafe_index_put(
        a.to(torch.uint64), [b - 4], b.to(torch.uint64)
    ),
    "powers of two put by index": lambda a, b: a.to(torch.float8_e8m0fnu).index_put_(
        (b - 4,), b[:1].float().to(torch.float8_e8m0fnu)
    ),
    "mask of float8 filled": lambda a, b: a.to(torch.float8_e5m2).index_put((a > 1,), b[0].to(torch.float8_e5m2)),
    "equality of complex32": lambda a, b: torch.equal(a.to(torch.complex32), b.to(torch.complex32)),
    "mode of two": lambda a, b: (a[0].to(torch.uint16).mode(), a[:2].to(torch.uint16).mode()),
    "mode of one in a row": lambda a, b: (a[0].to(torch.uint16).mode(), a[:1].to(torch.uint16).mode()),
    "places among few of uint16": lambda a, b: torch.isin(a.to(torch.uint16), b.to(torch.uint16)),
    "dropout of integers": lambda a, b: (torch.native_dropout(a, 0.5, False), torch.dropout(a, 0.5, True)),
    "sum of uint16": lambda a, b: a.to(torch.uint16) + b.to(torch.uint16),
    "symmetric solve of a number": lambda a, b: torch.linalg.ldl_solve(a.diag().float(), b.int(), a[0].float()),
    "symmetric solve by a number": lambda a, b: torch.linalg.ldl_solve(a[0].float(), b.int(), a.diag().float()),
}

TAKEN: dict[str, Call] = {
    "complex numbers added to lists": lambda a, b: torch._foreach_add([a.float(), b.float()], [1.0, 1j])[1],
    "pooling of halves": lambda a, b: torch.nn.functional.avg_pool3d(a.expand(1, 3, 3, 3).half(), 2),
    "pooling of bfloat16": lambda a, b: torch.nn.functional.avg_pool3d(a.expand(1, 3, 3, 3).bfloat16(), 2),
    "polygamma of halves": lambda a, b: torch.polygamma(1, a.half()),
    "logaddexp of bfloat16": lambda a, b: torch.logaddexp(a.bfloat16(), b.bfloat16()),
    "histogram of integers": lambda a, b: torch.histc(a, 2, 0, 4),
    "real results of complex right-hand sides": lambda a, b: torch.linalg.solve_triangular(
        torch.diag(a.float()), torch.diag(b).to(torch.complex64), upper=True
    ),
    "integer right-hand sides": lambda a, b: torch.linalg.solve_triangular(
        torch.diag(a.float()), torch.diag(b), upper=True
    ),
    "comparison of truth values": lambda a, b: a.bool() < b.bool(),
    "distinct numbers of uint16": lambda a, b: torch.cat([a, b, a]).to(torch.uint16).unique(),
    "distinct rows of uint64": lambda a, b: torch.stack([a, b, a]).to(torch.uint64).unique(dim=0),
    "range of bfloat16": lambda a, b: torch.arange(3, dtype=torch.bfloat16, device=a.device),
    "places in no float8": lambda a, b: torch.bucketize(a[:0].to(torch.float8_e4m3fn), b.float())[None].sum(1),
    "elements of float8 put by index": lambda a, b: a.to(torch.float8_e5m2).index_put(
        (b - 4,), b.to(torch.float8_e5m2)
    ),
    "places among many of uint16": lambda a, b: torch.isin(a.to(torch.uint16), b.expand(20, 3).to(torch.uint16)),
    "mode of a number": lambda a, b: a[0].to(torch.uint16).mode().values,
    "Cholesky factor of nothing": lambda a, b: torch.cholesky(a.new_empty(0, 2, 2).to(torch.uint16))[None].sum(0).sum(),
    "no dropout by any probability": lambda a, b: torch.native_dropout(a, 1.5, False)[0],
    "sum as complex": lambda a, b: a.float().sum(0, dtype=torch.complex64),
    "product as int8": lambda a, b: a.float().prod(0, dtype=torch.int8),
    "zeros of float8": lambda a, b: torch.zeros_like(a.float(), dtype=torch.float8_e5m2).float(),
    "one-hot": lambda a, b: torch.nn.functional.one_hot(a, 4),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_dtypes_without_a_kernel_are_refused_in_the_words_of_the_cpu(name: str, way: str) -> None:
    refusals = []
    for device, how in (("cpu", "recorded"), ("xla", way)):
        operands = torch.tensor([1, 2, 3], device=device), torch.tensor([4, 5, 6], device=device)
        with made_to_run(how, REFUSED[name]) as run, pytest.raises(Exception) as caught:
            run(*operands)
        if caught.type is torch._dynamo.exc.TorchRuntimeError:  # Dynamo's own meta kernels have refused it
            assert how == "openxla" and refusals[0][0] is RuntimeError
            return
        refusals.append((caught.type, str(caught.value).splitlines()[0]))
    assert refusals[1] == refusals[0]


@pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TAKEN)
def test_what_accelerators_have_kernels_for_is_taken(name: str, way: str) -> None:
    operands = torch.tensor([1, 2, 3], device="xla"), torch.tensor([4, 5, 6], device="xla")
    with made_to_run(way, TAKEN[name]) as run:
        torch_xla.sync(wait=True)
        assert run(*operands).cpu().numel()


def test_a_mean_of_complex_numbers_is_drawn_around_as_on_the_cpu() -> None:
    assert torch.normal(torch.ones(3, dtype=torch.complex64, device="xla"), 2).dtype is torch.complex64


def test_a_question_to_the_cpu_leaves_its_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_dtypes, "_taken", {})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.randperm(6, dtype=torch.int32, device="xla")
    torch.empty(3, dtype=torch.bfloat16, device="xla").normal_()
    torch.empty(3, dtype=torch.int32, device="xla").random_(0, 9)
    assert torch.equal(torch.rand(3), expected)


def test_a_large_range_costs_no_memory_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = cpu_errors.refusal_of_the_cpu
    monkeypatch.setattr(cpu_dtypes, "_taken", {})
    monkeypatch.setattr(cpu_errors, "refusal_of_the_cpu", lambda *a, **k: (asked.append(a[1]), ask(*a, **k))[1])
    torch.arange(1 << 34, dtype=torch.int64, device="xla")  # 128 GiB, never computed
    assert asked == [(0, 4, 1)] or asked == [(4,)] or asked == [(0, 4)]


def test_the_cpu_is_asked_once_for_each_combination_of_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = cpu_errors.refusal_of_the_cpu
    monkeypatch.setattr(cpu_dtypes, "_taken", {})
    monkeypatch.setattr(cpu_errors, "refusal_of_the_cpu", lambda *a, **k: (asked.append(a[0].name), ask(*a, **k))[1])
    for size in range(31, 36):  # another plan each
        one = torch.ones(size, dtype=torch.int32, device="xla")
        for _ in range(3):
            torch.bitwise_and(one, one)
    assert asked == ["aten::ones", "aten::bitwise_and.Tensor"]


def test_a_large_operand_of_a_pointwise_operator_costs_no_memory_on_the_host() -> None:
    large = torch.empty(1 << 20, 1 << 12, dtype=torch.int64, device="xla")  # 32 GiB, never computed
    with pytest.raises(NotImplementedError, match="hypot_cpu"):
        torch.hypot(large, large)


def test_lists_of_any_length_are_asked_for_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_dtypes, "_taken", {})
    monkeypatch.setattr(cpu_dtypes, "_MOST_TAKEN", 4)
    for length in range(2, 12):
        torch.cat([torch.ones(2, dtype=torch.int32, device="xla")] * length)
    assert 0 < len(cpu_dtypes._taken) <= 4


def test_a_question_to_the_cpu_shows_no_warning_again() -> None:
    def warn() -> None:
        warnings.warn("of the program", UserWarning, stacklevel=1)

    operator = op_schema.operator_of("aten::hypot")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        warn()
        for _ in range(3):
            assert cpu_errors.refusal_of_the_cpu(operator, (torch.ones(2), torch.ones(2)), {}) is None
            warn()
    assert [str(each.message) for each in shown] == ["of the program"]


@pytest.mark.parametrize("name", ["mul_", "ldexp_"])
def test_float8_with_complex_numbers_is_refused_in_the_words_of_the_cpu(name: str) -> None:
    """PyTorch's references, which know the dtypes of results elsewhere, have no complex dtype for a float8."""
    said = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as caught:
            getattr(torch.ones(2, device=device).to(torch.float8_e5m2), name)(torch.ones(2, device=device) * 1j)
        said.append(str(caught.value))
    assert said[1] == said[0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu])
def test_forms_of_ldexp_that_write_refuse_float8_as_ldexp_does(dtype: torch.dtype) -> None:
    def refusals(device: str) -> list[type]:
        x, exponents = torch.ones(3, device=device).to(dtype), torch.ones(3, dtype=torch.int64, device=device)
        calls: list[Callable[[], object]] = [
            lambda: torch.ldexp(x, exponents),
            lambda: x.ldexp_(exponents),
            lambda: torch.ldexp(x, exponents, out=x),
        ]
        caught = []
        for call in calls:
            with pytest.raises(RuntimeError) as refused:
                call()
            caught.append(refused.type)
        return caught

    assert all(map(issubclass, refusals("xla"), refusals("cpu")))


def test_forms_of_ldexp_that_write_accept_what_ldexp_accepts() -> None:
    x, exponents = torch.tensor([1.5, 3.0], device="xla"), torch.tensor([2, 130], device="xla")
    assert torch.ldexp(x, exponents, out=torch.empty(0, device="xla")).tolist() == [6.0, torch.inf]
    assert x.ldexp_(exponents).tolist() == [6.0, torch.inf]


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint16, torch.float8_e5m2])
def test_dropout_is_refused_as_the_composition_that_the_cpu_runs(dtype: torch.dtype) -> None:
    said = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as caught:
            torch.nn.functional.dropout(torch.ones(3, device=device).to(dtype), 0.5)
        said.append((caught.type, str(caught.value)))
    assert said[1] == said[0]


def test_what_gives_nothing_says_nothing_about_dtypes() -> None:
    for device in ("cpu", "xla"):
        x = torch.arange(4, device=device).reshape(2, 2)
        assert torch.ops.aten._pdist_forward(x[:1], 1.0).numel() == 0
        with pytest.raises(NotImplementedError, match="\"pdist\" not implemented for 'Long'"):
            torch.ops.aten._pdist_forward(x, 1.0)
