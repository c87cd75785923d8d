"""Results without a correct meta kernel of PyTorch have the sizes, strides and dtypes of the CPU."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.twins import check_same
from torch_xla._engine.dispatch import missing_meta_kernels
from torch_xla.experimental import eager_mode

aten = torch.ops.aten


@pytest.mark.parametrize("values", [3, [3, -2], [1.5, -2.0]])
@pytest.mark.parametrize("number", [5, -7, 2.5])
def test_a_number_may_be_divided_by_a_tensor_to_a_whole_one(number: float, values: Any) -> None:
    check_same(lambda device: number // torch.tensor(values, device=device))


@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.BatchNorm1d], ids=lambda norm: norm.__name__)
def test_gradients_of_narrow_norms_take_the_statistics_kept_in_float32(norm: type[torch.nn.Module]) -> None:
    layer = norm(4).to("xla", torch.bfloat16)
    x = torch.arange(12.0, device="xla").reshape(3, 4).square().to(torch.bfloat16).requires_grad_()
    first = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()], create_graph=True)
    second = torch.autograd.grad(sum(g.float().square().sum() for g in first), x)
    assert {g.dtype for g in (*first, *second)} == {torch.bfloat16}


MIXED: list[Callable[..., torch.Tensor]] = [
    torch.copysign, torch.floor_divide, torch.logaddexp, torch.logical_and, torch.xlogy, torch.special.xlog1py,
    torch.add, torch.atan2, partial(torch.div, rounding_mode="floor"),
]  # fmt: skip
BESIDE = (torch.ones(3, 2), torch.tensor(2), torch.tensor([2.0, 3.0]), torch.ones(3, 1, dtype=torch.float64))


@pytest.mark.parametrize("function", MIXED, ids=lambda function: getattr(function, "__name__", "div"))
@pytest.mark.parametrize("beside", BESIDE, ids=lambda tensor: f"{tuple(tensor.shape)}")
def test_results_lie_in_memory_as_on_the_cpu(function: Callable[..., torch.Tensor], beside: torch.Tensor) -> None:
    turned = torch.ones(2, 3).mT
    for pair in ((turned, beside), (beside.to(turned.dtype), turned)):
        ours, theirs = (function(*[x.to(device) for x in pair]) for device in ("xla", "cpu"))
        assert ours.stride() == theirs.stride() and ours.dtype is theirs.dtype


def test_some_results_are_contiguous_as_on_the_cpu() -> None:
    turned = torch.ones(2, 3, device="xla").mT
    assert torch.isin(turned, torch.ones(2, device="xla")).is_contiguous()
    assert (2**turned).is_contiguous()
    assert torch._foreach_pow(2.0, [turned])[0].is_contiguous()
    assert torch.nn.functional.logsigmoid(turned).is_contiguous()
    assert torch.floor_divide(turned, 2).stride() == (1, 3)
    assert torch.nn.functional.batch_norm(turned, None, None, training=True).is_contiguous()
    statistics = torch.ones(2, device="xla")
    assert torch.nn.functional.batch_norm(turned, statistics, statistics).is_contiguous()


@pytest.mark.parametrize("name", ["elu_", "celu_", "leaky_relu_", "rrelu_"])
def test_results_of_negative_slopes_have_no_gradient_where_their_operands_are_gone(name: str) -> None:
    slopes = (-0.5, -0.25) if name == "rrelu_" else (-2.0,)
    for device in ("cpu", "xla"):
        x = torch.tensor([-1.0, 1.0], device=device, requires_grad=True)
        result = getattr(torch.nn.functional, name)(x.clone(), *slopes)
        with pytest.raises(RuntimeError, match="call out-of-place version"):
            result.sum().backward()


def test_complex_numbers_that_are_none_are_replaced_in_place() -> None:
    numbers = torch.tensor([complex("nan"), 1 + 2j], device="xla").nan_to_num_(3.0)
    assert numbers.tolist() == [3 + 0j, 1 + 2j]


@pytest.mark.parametrize("exponent", [True, False, 2, [True, False], [2, 3]], ids=str)
def test_powers_of_truth_values_have_the_dtype_they_have_on_the_cpu(exponent: bool | int | list[int]) -> None:
    def program(d: str) -> Any:
        base = torch.tensor([True, False], device=d)
        if isinstance(exponent, list):
            return torch._foreach_pow([base, base], exponent)
        return [torch.pow(base, exponent), *torch._foreach_pow([base, ~base], exponent)]

    check_same(program)


@pytest.mark.parametrize("function", [torch.copysign, torch.floor_divide])
def test_a_number_may_stand_where_a_form_that_writes_takes_a_tensor(function: Callable[..., torch.Tensor]) -> None:
    def program(d: str) -> Any:
        x = torch.tensor([1.0, -2.0, 3.0], device=d)
        return function(x, -2.0, out=torch.empty(3, device=d)), getattr(x.clone(), function.__name__ + "_")(-2.0)

    check_same(program)


def spec(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def meta(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


@pytest.mark.parametrize("size", [(3, 3), (4, 2), (2, 4), (5, 3, 2), (0, 2)], ids=str)
def test_reflectors_lie_as_lapack_leaves_them(size: tuple[int, ...]) -> None:
    ours, theirs = missing_meta_kernels.geqrf(meta(*size)), torch.geqrf(torch.ones(size))
    assert [spec(each)[::2] for each in ours] == [spec(each)[::2] for each in theirs]
    if 0 not in size:
        assert ours[0].stride() == theirs[0].stride()
    with pytest.raises(RuntimeError, match="^torch.geqrf: input must have at least 2 dimensions.$"):
        missing_meta_kernels.geqrf(meta(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8], ids=str)
def test_histograms_of_integers_are_known(dtype: torch.dtype) -> None:
    found = missing_meta_kernels.histc(meta(5, dtype=dtype), 7)
    assert found.shape == (7,) and found.dtype is dtype
    assert found.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_grouped_products_take_every_float(dtype: torch.dtype) -> None:
    offsets = torch.empty(2, dtype=torch.int32, device="meta")
    found = missing_meta_kernels.grouped_mm(meta(8, 16, dtype=dtype), meta(2, 16, 32, dtype=dtype), offsets)
    assert spec(found) == ((8, 32), (32, 1), dtype)


def test_no_dimensions_are_all_of_them() -> None:
    assert missing_meta_kernels.nansum(meta(2, 3), []).shape == torch.nansum(torch.ones(2, 3), []).shape == ()
    assert missing_meta_kernels.nansum(meta(2, 3), [0], True).shape == (1, 3)


@pytest.mark.parametrize("count", [0, 2])
def test_no_images_can_be_resized(count: int) -> None:
    kernel = missing_meta_kernels.KERNELS["aten::upsample_nearest2d"]
    assert kernel(meta(count, 3, 4, 4), [8, 6]).shape == (count, 3, 8, 6)


def test_gradients_of_a_linear_layer_that_nobody_wants_are_none() -> None:
    x, grad, weight = meta(4, 3), meta(4, 2), meta(2, 3)
    found = missing_meta_kernels.linear_backward(x, grad, weight, [True, False, True])
    assert [None if each is None else tuple(each.shape) for each in found] == [(4, 3), None, (2,)]


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1), (None, 1)], ids=str)
def test_indexed_tensors_have_the_strides_of_the_cpu(places: tuple[int | None, ...]) -> None:
    host = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    indices = [None if place is None else torch.tensor([0, 1]) for place in places]
    on_meta = [None if each is None else each.to("meta") for each in indices]
    found = missing_meta_kernels.index(host.to("meta"), on_meta)
    assert spec(found) == spec(torch.ops.aten.index.Tensor(host, indices))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_floats_keep_their_dtype_and_their_lengths_are_wide(dtype: torch.dtype) -> None:
    numbers = torch.arange(6.0).view(2, 3).to(dtype)
    for call in (
        lambda x: aten._masked_softmax(x, x > 2),
        lambda x: aten._masked_softmax_backward(x, x, x > 2),
        lambda x: torch._weight_norm_interface(x + 1, x[:, :1].clone())[1],
    ):
        found, expected = call(numbers.to("xla")), call(numbers)
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("numbers", [(0, 3, 0.5), (-3, -1, 0.5), (0.5, 3.7, 1.2), (3, 0, -0.5)])
def test_steps_are_counted_before_they_are_cut_off(dtype: torch.dtype, numbers: tuple[float, ...]) -> None:
    ours, theirs = (torch.arange(*numbers, dtype=dtype, device=device).cpu() for device in ("xla", "cpu"))
    assert torch.equal(ours, theirs) and ours.dtype is theirs.dtype
    for device in ("cpu", "xla"):
        with pytest.raises(ValueError, match="step must be nonzero"):
            torch.arange(0, 3, 0.5, dtype=torch.int64, device=device)


def test_each_kernel_is_of_an_operator_that_there_is() -> None:
    for name in missing_meta_kernels.KERNELS:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload or "default"), name


def test_bytes_are_a_condition_with_the_warning_of_the_cpu() -> None:
    def chosen(device: str) -> torch.Tensor:
        condition = torch.tensor([[0], [2]], dtype=torch.uint8, device=device)
        return torch.where(condition, torch.ones(3, device=device), torch.zeros(2, 3, device=device))

    with pytest.warns(UserWarning, match="where received a uint8 condition tensor") as told:
        found = chosen("xla")
    assert told[0].filename == __file__
    assert found.tolist() == [[0.0] * 3, [1.0] * 3]


NARROW_FIRST: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "huber_loss": torch.nn.functional.huber_loss,
    "soft_margin_loss": torch.nn.functional.soft_margin_loss,
    "mse_loss": torch.nn.functional.mse_loss,
    "smooth_l1_loss": torch.nn.functional.smooth_l1_loss,
    "binary_cross_entropy": lambda a, b: aten.binary_cross_entropy(a, a, b),
    "binary_cross_entropy_with_logits": torch.nn.functional.binary_cross_entropy_with_logits,
    "normal": lambda a, b: torch.normal(a, b * 0),
    "mse_loss_backward": lambda a, b: aten.mse_loss_backward(b, a, b, 0),
    "smooth_l1_loss_backward": lambda a, b: aten.smooth_l1_loss_backward(b, a, b, 0, 1.0),
    "soft_margin_loss_backward": lambda a, b: aten.soft_margin_loss_backward(b, a, b, 0),
    "mish_backward": lambda a, b: aten.mish_backward(b, a),
    "threshold_backward": lambda a, b: [aten.threshold_backward(a, b, 0.5), aten.threshold_backward(b, a, 0.5)],
    "block_diag": lambda a, b: [torch.block_diag(a, b[0]), torch.block_diag(b[0], a), torch.block_diag(a[0], b[0])],
    "addr": lambda a, b: [torch.addr(a[0], b, b), torch.addr(b[0], a, a), torch.addr(b[0].long(), a, a)],
    "linspace": lambda a, b: torch.linspace(a[0], b[1], 3, device=a.device),
    "ldexp": lambda a, b: [torch.ldexp(a, b * 20), torch.ldexp(b, a * 20), torch.ldexp(a[0].long(), b[0])],
    "native_dropout_backward": lambda a, b: aten.native_dropout_backward(a, b, 2.0),
    "ldexp of a complex number": lambda a, b: torch.ldexp(a.to(torch.complex64) + 2j, b.bfloat16()),
}


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float32), (torch.float32, torch.float64),
                                    (torch.bfloat16, torch.float16)], ids=str)  # fmt: skip
@pytest.mark.parametrize("function", NARROW_FIRST.values(), ids=list(NARROW_FIRST))
def test_results_of_unlike_floats_have_the_dtype_they_have_on_the_cpu(
    function: Callable[[torch.Tensor, torch.Tensor], Any], dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    narrow, wide = (torch.tensor([0.25, 0.9]).to(dtype) for dtype in dtypes)
    check_same(lambda device: function(narrow.to(device), wide.to(device)))


def test_a_loss_of_unlike_floats_is_learnt_from_in_the_dtype_of_its_input() -> None:
    """Its gradient too: the CPU refuses that of `huber_loss`, for which PyTorch's own kernels take one dtype."""
    x = torch.tensor([0.25, 2.5], dtype=torch.float16, device="xla", requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.nn.functional.huber_loss(x, torch.ones(2, device="xla")), x)
    assert gradient.dtype is torch.float16
    assert gradient.tolist() == [-0.375, 0.5]


HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_complex_blocks_without_dimensions_count_by_their_kind(half: torch.dtype) -> None:
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        for sizes in (((2, 2), ()), ((), (2, 2)), ((), ()), ((0,), ())):
            blocks = [torch.ones(size).to(each) for size, each in zip(sizes, (half, dtype), strict=True)]
            expected = torch.block_diag(*blocks)
            assert torch.block_diag(*(block.to("xla") for block in blocks)).dtype is expected.dtype


@pytest.mark.parametrize("shift", [operator.lshift, operator.rshift])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
@pytest.mark.parametrize("mode", ["recorded", "eager", "replay"])  # PyTorch itself refuses to trace them
def test_truth_values_shift_and_are_shifted(shift: Any, dtype: torch.dtype, mode: str) -> None:
    truths, numbers = torch.tensor([True, False, True]), torch.tensor([3, 1, 0]).to(dtype)
    calls = [(truths, numbers), (numbers, truths), (truths, 1), (numbers, True)]
    expected = [shift(*call) for call in calls]
    moved = [[each.to("xla") if isinstance(each, torch.Tensor) else each for each in call] for call in calls]

    def program(pairs: Any) -> Any:
        return [shift(*pair) for pair in pairs]

    with in_mode(mode, program) as run:
        for _ in range(3):
            found = run(moved)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype is theirs.dtype and torch.equal(ours.cpu(), theirs)


@contextmanager
def in_mode(mode: str, program: Any) -> Iterator[Any]:
    if mode == "replay":
        program = torch_xla.compile(program, replay=True)
    eager_mode(mode == "eager")
    try:
        yield program
    finally:
        eager_mode(False)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_choice_between_halves_of_complex_numbers_and_a_small_float_keeps_their_dtype() -> None:
    def chosen(device: str) -> torch.Tensor:
        condition = torch.tensor([True, False], device=device)
        numbers = torch.full((2,), 1 + 2j, dtype=torch.complex32, device=device)
        return torch.where(condition, numbers, torch.tensor(2.0, device=device).to(torch.float8_e4m3fn))

    ours, theirs = chosen("xla"), chosen("cpu")
    assert ours.dtype is theirs.dtype is torch.complex32
    assert ours.to(torch.complex64).tolist() == theirs.to(torch.complex64).tolist()
