"""Calls that the CPU refuses raise its errors: too small targets, unknown parameters, invalid sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla._engine.dispatch.checks.cpu_errors import refusal_of_the_cpu
from torch_xla._engine.dispatch.op_schema import operator_of

Call = Callable[[Callable[..., torch.Tensor]], Any]


# Newer releases give some of these calls a meaning, or another error.
NEWER = torch.__version__ >= (2, 14)


def message(call: Call, device: str) -> str:
    """Return the error message of a call, or its result."""
    try:
        result = call(lambda *size, **options: torch.ones(*size, device=device, **options))
    except (RuntimeError, TypeError) as refusal:
        assert NEWER or isinstance(refusal, RuntimeError)
        return f"{type(refusal).__name__}: {refusal}"
    assert NEWER, "not refused"
    return f"{result.dtype} {result.cpu()}"


TARGETS: dict[str, Call] = {
    name: lambda ones, name=name: getattr(ones(5, 1), name)(ones(5))  # type: ignore[misc]
    for name in ("add_", "atan2_", "clamp_max_", "fmod_", "ge_", "hypot_", "ldexp_", "xlogy_")
} | {
    "bitwise_and_": lambda ones: ones(5, 1, dtype=torch.int32).bitwise_and_(ones(5, dtype=torch.int32)),
    "addr_": lambda ones: ones(()).addr_(ones(5), ones(10)),
}


@pytest.mark.parametrize("name", TARGETS)
def test_no_operand_enlarges_the_target_of_an_operator_in_place(name: str) -> None:
    assert message(TARGETS[name], "xla") == message(TARGETS[name], "cpu")


def test_the_one_operator_that_enlarges_its_target_does() -> None:
    grown = torch.ones(1, device="xla").addbmm_(torch.ones(2, 3, 4, device="xla"), torch.ones(2, 4, 5, device="xla"))
    assert grown.shape == (3, 5) and grown.unique().tolist() == [9]


PARAMETERS: dict[str, Call] = {
    "bernoulli_": lambda ones: ones(3).bernoulli_(1.5),
    "cauchy_": lambda ones: ones(3).cauchy_(0, 0),
    "exponential_": lambda ones: ones(3).exponential_(0),
    "geometric_": lambda ones: ones(3).geometric_(1),
    "log_normal_": lambda ones: ones(3).log_normal_(0, 0),
    "multinomial": lambda ones: ones(3, dtype=torch.int64).multinomial(1),
    "normal_": lambda ones: ones(3).normal_(0, -1),
    "random_": lambda ones: ones(3).random_(3, 3),
    "random_ of complex numbers": lambda ones: ones(3, dtype=torch.complex64).random_(2, 3),
    "random_ of bytes": lambda ones: ones(3, dtype=torch.uint8).random_(0, 300),
    "uniform_": lambda ones: ones(3).uniform_(1, 0),
    "uniform_, too wide": lambda ones: ones(3).uniform_(0, 1e39),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_that_no_distribution_has_is_refused_in_every_call(name: str) -> None:
    tensor = torch.ones(3, device="xla")
    tensor.exponential_(2.0)  # plans are found by the kinds of numbers, not by the numbers
    tensor.normal_(0, 1)
    assert message(PARAMETERS[name], "xla") == message(PARAMETERS[name], "cpu")


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_weights_from_the_host_are_looked_at(weights: list[float]) -> None:
    messages = set()
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as refusal:
            torch.multinomial(torch.tensor(weights, device=device), 1)
        messages.add(str(refusal.value))
    assert len(messages) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda ones: torch.complex(ones(3), ones(3, dtype=torch.float64)),
        lambda ones: ones(1, 3).masked_scatter(ones(1, 3, dtype=torch.uint8), ones(3, 4)),
        lambda ones: ones(3, 2).index_add(0, ones(2, dtype=torch.int64), ones(2)),
    ],
)
def test_operands_that_do_not_go_together_are_refused(call: Call) -> None:
    assert message(call, "xla") == message(call, "cpu")


def test_a_tensor_has_at_most_64_dims() -> None:
    with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported on an xla device; .* has 65"):
        torch.ones([1] * 65).to("xla")


@pytest.mark.parametrize("name", ["pow_", "floor_divide_", "__ilshift__"])
def test_writing_forms_with_a_sibling_of_another_name_stay_on_the_device(name: str) -> None:
    met.clear_all()
    for other in (torch.tensor([2, 3]), 2):
        x, there = torch.tensor([5, 7]), other.to("xla") if isinstance(other, torch.Tensor) else other
        assert torch.equal(getattr(x.to("xla"), name)(there).cpu(), getattr(x, name)(other))
    assert not met.executed_fallback_ops()


def test_a_writing_form_may_take_its_arguments_in_another_order() -> None:
    x = torch.tensor([1.0, 2.5])
    torch.testing.assert_close(x.to("xla").polygamma_(2).cpu(), x.clone().polygamma_(2))


def scattered(ones: Callable[..., torch.Tensor], how: str) -> torch.Tensor:
    x = ones(3, dtype=torch.complex64)
    return x.scatter_reduce(0, ones(3, dtype=torch.int64) - 1, x, how)


ORDERED: dict[str, Call] = {
    "argmax": lambda ones: torch.argmax(ones(3, dtype=torch.complex64)),
    "amax": lambda ones: torch.amax(ones(3, dtype=torch.complex64), 0),
    "clamp": lambda ones: torch.clamp(ones(3, dtype=torch.complex64), 0, 1),
    "cummin": lambda ones: torch.cummin(torch.cummin(ones((), dtype=torch.complex64), 0)[0] + ones(3), 0),
    "floor_": lambda ones: ones(3, dtype=torch.complex128).floor_(),
    "gt": lambda ones: ones(3, dtype=torch.complex64) > 0,
    "maximum": lambda ones: torch.maximum(ones(3), ones(3, dtype=torch.complex64)),
    "min": lambda ones: torch.min(ones(3, dtype=torch.complex64), 0),
    "msort": lambda ones: torch.msort(ones(0, 3, dtype=torch.complex64)),
    "scatter_reduce": lambda ones: scattered(ones, "sum") * 0 + scattered(ones, "amax"),
    "remainder": lambda ones: torch.remainder(ones(3, dtype=torch.complex64), 2),
}


@pytest.mark.parametrize("name", ORDERED)
def test_complex_numbers_have_no_order(name: str) -> None:
    assert message(ORDERED[name], "xla") == message(ORDERED[name], "cpu")
    assert message(ORDERED[name], "xla") == message(ORDERED[name], "cpu")


MEANINGLESS: dict[str, Call] = {
    "a truth as a factor": lambda ones: ones(3, dtype=torch.int32).add(ones(3, dtype=torch.int32), alpha=True),
    "a float as a factor": lambda ones: (
        ones(3, dtype=torch.int32).sub_(ones(3, dtype=torch.int32), alpha=2)
        + ones(3, dtype=torch.int32).sub_(ones(3, dtype=torch.int32), alpha=2.0)
    ),
    "sub_ of a truth": lambda ones: ones(3, dtype=torch.int64).sub_(True),
    "rsub of a truth": lambda ones: True - ones(3),
    "sub of truths": lambda ones: ones(3) - (ones(3) > 0),
    "std": lambda ones: ones(3, dtype=torch.int32).std(0),
    "var": lambda ones: ones(3, dtype=torch.bool).var(),
    "_foreach_sign": lambda ones: torch._foreach_sign([ones(3, dtype=torch.complex64), ones(3)]),
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_what_an_operator_has_no_meaning_for_is_refused(name: str) -> None:
    assert message(MEANINGLESS[name], "xla") == message(MEANINGLESS[name], "cpu")


def test_the_zeros_that_the_cpu_is_asked_with_refuse_nothing() -> None:
    numbers = torch.tensor([[4, 2], [0, 3]], device="xla")
    assert (numbers % torch.tensor([3, 2], device="xla")).tolist() == [[1, 0], [0, 1]]
    assert torch.linalg.inv(numbers.to(torch.complex128)).cpu()[0, 0].item() == pytest.approx(0.25)


THEMSELVES: dict[str, Call] = {
    "index_put_": lambda ones: (x := ones(2)).index_put_((ones(2).to(torch.int64) - 1,), x, accumulate=True),
    "index_add_": lambda ones: (x := ones(2)).index_add_(0, ones(2).to(torch.int64) - 1, x),
    "scatter_add_": lambda ones: (x := ones(2)).scatter_add_(0, ones(2).to(torch.int64) - 1, x),
    "scatter_": lambda ones: (x := ones(2, dtype=torch.int64)).scatter_(0, x, 1),
    "scatter_reduce_ of nothing": lambda ones: (x := ones(0)).scatter_reduce_(0, ones(0).long(), x, "amax"),
    "setitem": lambda ones: (x := ones(4)).__setitem__(ones(2).long(), x[2:]),
    "cat": lambda ones: (x := ones(4)) is torch.cat([x], out=x),
    "gather": lambda ones: torch.gather(x := ones(4), 0, ones(4).long(), out=x.view(4)),
    "index_select": lambda ones: torch.index_select(x := ones(4), 0, ones(1).long(), out=x[:1]),
    "take": lambda ones: torch.take(x := ones(4), ones(1).long(), out=x[:1]),
    "masked_select": lambda ones: torch.masked_select(x := ones(4), ones(4) > 0, out=x[:1]),
    "masked_select of a mask": lambda ones: torch.masked_select(x := ones(4) > 0, x, out=x),
    "nonzero": lambda ones: torch.nonzero(x := ones(4).long(), out=x),
    "linalg.cross": lambda ones: torch.linalg.cross(x := ones(3), ones(3), out=x),
    "index_add": lambda ones: torch.index_add(ones(4), 0, ones(4).long() - 1, x := ones(4), out=x),
}


@pytest.mark.parametrize("name", THEMSELVES)
def test_what_places_elements_takes_none_of_what_it_writes(name: str) -> None:
    assert message(THEMSELVES[name], "xla") == message(THEMSELVES[name], "cpu")


def test_elements_may_be_placed_from_beside_the_written_ones() -> None:
    results = []
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device)
        x[torch.arange(6, device=device) < 3] = x.as_strided((3,), (2,))
        results.append(torch.index_add(x, 0, torch.tensor([1], device=device), torch.ones(1, device=device), out=x))
    assert torch.equal(results[0], results[1].cpu())


@pytest.mark.parametrize("name", ["index_add_", "index_reduce_"])
def test_a_number_is_no_slice(name: str) -> None:
    how = ("amax",) if name == "index_reduce_" else ()
    for sizes in (((6,), ()), ((), (1,))):

        def call(ones: Callable[..., torch.Tensor], sizes: Any = sizes) -> torch.Tensor:
            return getattr(ones(sizes[0]), name)(0, ones(1).long() - 1, ones(sizes[1]), *how)  # type: ignore[no-any-return]

        assert message(call, "xla") == message(call, "cpu")


@pytest.mark.parametrize("write", [False, True])
def test_nothing_has_no_first_element(write: bool) -> None:
    refusals = []
    for device in ("cpu", "xla"):
        x, index = torch.ones(3, 0, 1, 0, device=device), torch.tensor([0, 0], device=device) + 0
        try:
            x.__setitem__((slice(None), index), 1.0) if write else x[:, index]
        except IndexError as refusal:
            refusals.append(str(refusal))
        else:
            assert NEWER and write, "not refused"
            refusals.append("taken")
    assert refusals[0] == refusals[1]


@pytest.mark.skipif(hasattr(torch, "bcomplex32"), reason="PyTorch 2.14.1 has a complex dtype for them; XLA has not")
@pytest.mark.parametrize("function", [torch.polar, torch.complex])
@pytest.mark.parametrize("size", [0, 3])
def test_complex_numbers_are_made_of_floats_that_have_a_complex_dtype(function: Any, size: int) -> None:
    def call(ones: Callable[..., torch.Tensor]) -> torch.Tensor:
        return function(ones(size, dtype=torch.bfloat16), ones(size, dtype=torch.bfloat16))  # type: ignore[no-any-return]

    assert message(call, "xla") == message(call, "cpu")


def test_a_threshold_may_be_written_to_what_shows_an_element_twice() -> None:
    """It comes to the same, however often: PyTorch lets it."""
    x = torch.tensor([[0.2, 0.8, -1.0]])
    here = x.to("xla").expand(3, 3)
    torch.nn.functional.threshold_(here, 0.5, 7.0)
    assert here.tolist() == torch.nn.functional.threshold(x, 0.5, 7.0).expand(3, 3).tolist()


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_pixels_of_whole_numbers_are_not_mixed(mode: str, antialias: bool) -> None:
    def call(ones: Callable[..., torch.Tensor]) -> torch.Tensor:
        image = ones(1, 3, 8, 8, dtype=torch.int64)
        return torch.nn.functional.interpolate(image, (4, 4), mode=mode, antialias=antialias)

    assert message(call, "xla") == message(call, "cpu")
    assert "not implemented for 'Long'" in message(call, "xla")


PRODUCTS: dict[str, Call] = {
    "mm": lambda ones: ones(3, 3) @ ones(3, 3),
    "mv": lambda ones: ones(3, 3) @ ones(3),
    "dot": lambda ones: ones(3) @ ones(3),
    "bmm": lambda ones: ones(2, 3, 3) @ ones(2, 3, 3),
    "addmm": lambda ones: torch.addmm(ones(3, 3), ones(3, 3), ones(3, 3)),
    "addmv": lambda ones: torch.addmv(ones(3), ones(3, 3), ones(3)),
    "baddbmm_": lambda ones: ones(2, 3, 3).baddbmm_(ones(2, 3, 3), ones(2, 3, 3)),
    "addr": lambda ones: torch.addr(ones(3, 3), ones(3), ones(3)),
    "nothing": lambda ones: ones(2, 0) @ ones(0, 2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrices_of_truth_values_are_multiplied_where_the_cpu_does(name: str) -> None:
    def outcome(device: str) -> str:
        try:
            result = PRODUCTS[name](lambda *size: torch.ones(*size, dtype=torch.bool, device=device))
            return f"{result.dtype} {result.cpu()}"
        except NotImplementedError as refusal:
            return str(refusal)

    assert outcome("xla") == outcome("cpu")


# PyTorch's kernels for the CPU write to some of these as if each element had a place: behind the memory there is.
SHOWN_TWICE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "_softmax": lambda x, out: torch._softmax(x, 0, False, out=out),
    "_log_softmax": lambda x, out: torch._log_softmax(x, 1, False, out=out),
    "eye": lambda x, out: torch.eye(3, out=out),
    "sum": lambda x, out: torch.sum(x.expand(2, 3, 3), 0, out=out),
    "diag": lambda x, out: torch.diag(x[0], out=out),
    "of another dtype": lambda x, out: torch.sigmoid(x, out=out.double().narrow(0, 0, 1).expand(3, 3)),
}


@pytest.mark.parametrize("name", SHOWN_TWICE)
def test_an_out_that_shows_an_element_twice_is_refused_without_asking_the_cpu(name: str) -> None:
    for _ in range(30):  # one write behind its end need not end the process
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            SHOWN_TWICE[name](torch.ones(3, 3, device="xla"), torch.zeros(1, 3, device="xla").expand(3, 3))


WRONG: dict[str, Call] = {
    "bucketize": lambda ones: torch.bucketize(ones(2, 3, 4), ones(2, 3, 4)),
    "bucketize without dimensions": lambda ones: torch.bucketize(ones(2), ones(())),
    "put of more than there are places": lambda ones: torch.put(ones(3), ones(0).long(), ones(2)),
    "put_ of more than there are places": lambda ones: ones(0).put_(ones(0).long(), ones(3, 3)),
    "put into nothing": lambda ones: torch.put(ones(0), ones(1).long(), ones(1)),
    "index_reduce by a sum": lambda ones: ones(3).index_reduce(0, ones(1).long(), ones(1), "sum"),
    "index_reduce_ by a sum": lambda ones: ones(3).index_reduce_(0, ones(1).long(), ones(1), "sum"),
    "embedding_bag of a block": lambda ones: torch.embedding_bag(ones(4, 2), ones(2, 2, 2).long(), ones(1).long())[0],
    "embedding_bag of a number": lambda ones: torch.embedding_bag(ones(4, 2), ones(()).long(), ones(1).long())[0],
    "embedding_bag by a table": lambda ones: torch.embedding_bag(ones(4, 2), ones(2).long(), ones(1, 1).long())[0],
}


@pytest.mark.parametrize("name", WRONG)
def test_sizes_and_words_that_the_cpu_refuses_are_refused(name: str) -> None:
    assert outcome_of(WRONG[name], "xla") == outcome_of(WRONG[name], "cpu")


def test_a_call_whose_sizes_were_refused_leaves_others_to_be_asked_about() -> None:
    pixels, classes = torch.ones(2, 2, 1, 3, dtype=torch.int16), torch.zeros(2, 1, 3, dtype=torch.int64)
    for sizes in (classes[:, :, :1], classes):
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.nn.functional.nll_loss(pixels.to("xla"), sizes.to("xla"))


def outcome_of(call: Call, device: str) -> tuple[type, str]:
    """Return the error that a call must raise."""
    with pytest.raises(Exception) as refusal:
        call(lambda *size: torch.ones(*size, device=device))
    return refusal.type, str(refusal.value)


HUGE = 2**40


def test_the_cpu_is_not_asked_for_what_would_not_fit_in_memory() -> None:
    one = torch.ones(1, device="xla")
    on_device = {"device": torch.device("xla")}
    wide = torch.ones(2**20, device="xla")
    assert isinstance(refusal_of_the_cpu(operator_of("aten::cumsum"), (one, 5), {}), IndexError)
    assert refusal_of_the_cpu(operator_of("aten::cumsum"), (one.expand(HUGE), 5), {}) is None
    assert refusal_of_the_cpu(operator_of("aten::cumsum"), (torch.empty(HUGE, device="xla"), 5), {}) is None
    assert refusal_of_the_cpu(operator_of("aten::full"), ([HUGE], 1.0), on_device) is None
    assert refusal_of_the_cpu(operator_of("aten::outer"), (wide, wide), {}) is None
    assert isinstance(refusal_of_the_cpu(operator_of("aten::full"), ([-3], 1.0), on_device), RuntimeError)


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "dropout1d", "feature_alpha_dropout"])
def test_no_dropout_takes_complex_numbers(name: str) -> None:
    def call(ones: Callable[..., torch.Tensor]) -> torch.Tensor:
        return getattr(torch.nn.functional, name)(ones(2, 3, 4, dtype=torch.complex64), 0.5, training=True)  # type: ignore[no-any-return]

    said = []
    for device in ("xla", "cpu"):
        with pytest.raises(NotImplementedError) as caught:
            call(lambda *size, device=device, **options: torch.ones(*size, device=device, **options))
        said.append(str(caught.value))
    assert said[0] == said[1]
