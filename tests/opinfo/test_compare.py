"""The comparison finds a wrong element among right ones, however large PyTorch's error is elsewhere."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from .compare import Differs, Measure, check_values
from .operands import Dtypes, Nudge, moved
from .truth import Results, Truth

Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Many small calls: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def measure_of(function: Function, *operands: Tensor, is_pointwise: bool = False) -> Measure:
    def call(dtypes: Dtypes, nudge: Nudge | None) -> Results:
        return {"result": [function(*moved(operands, "cpu", dtypes, nudge))]}

    return Measure.of(Truth(call, operands[0].dtype), "result", 0, is_pointwise)


def numbers(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*size, dtype=dtype, generator=torch.Generator().manual_seed(0))


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
CONTRACTIONS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "product": (lambda x: x @ x.mT, (8, 30)),
    "sum": (lambda x: x.sum(1), (8, 400)),
    "variance": (lambda x: x.abs().var(1), (8, 40)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_another_order_of_summation_passes_and_one_wrong_element_does_not(name: str, dtype: torch.dtype) -> None:
    function, size = CONTRACTIONS[name]
    x = numbers(*size, dtype=dtype)
    theirs = function(x)
    measure = measure_of(function, x)
    check_values(function(x.flip(-1)), theirs, measure, name)
    for place in (0, theirs.numel() // 2, theirs.numel() - 1):
        wrong = theirs.clone()
        scale = theirs.abs().max()
        # This number of roundings of the largest element is exceeded by sums in a narrower dtype, or without a term.
        wrong.view(-1)[place] += 100 * torch.finfo(dtype).eps * scale
        with pytest.raises(Differs, match="1 of"):
            check_values(wrong, theirs, measure, name)


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_elements_of_a_pointwise_function_are_measured_by_their_own_size(dtype: torch.dtype) -> None:
    x = torch.tensor([1e-3, 0.1, 1.0, 3.0], dtype=dtype)
    theirs = torch.exp(-x * x) * x
    measure = measure_of(lambda x: torch.exp(-x * x) * x, x, is_pointwise=True)
    wrong = theirs.clone()
    wrong[-1] *= 1 + 40 * torch.finfo(dtype).eps * 9  # the exponent is 9, and so is what a rounding of it makes
    with pytest.raises(Differs, match="1 of 4"):
        check_values(wrong, theirs, measure, "bell")


def test_an_error_of_pytorch_in_one_element_excuses_none_in_another() -> None:
    x = numbers(8)
    theirs = x.exp()
    theirs[3] *= 1.01  # PyTorch is far off here
    measure = measure_of(torch.exp, x, is_pointwise=True)
    right, wrong = x.exp(), x.exp()
    check_values(right, theirs, measure, "exp")
    wrong[5] *= 1.001
    with pytest.raises(Differs, match="1 of 8"):
        check_values(wrong, theirs, measure, "exp")


def test_where_terms_cancel_the_roundings_of_the_operands_are_allowed_and_no_more() -> None:
    x = torch.tensor([[1e4, 1.0, -1e4], [1.0, 2.0, 3.0]])
    theirs, measure = x.sum(1), measure_of(lambda x: x.sum(1), x)
    check_values(theirs + torch.tensor([1e-3, 0.0]), theirs, measure, "sum")
    for wrong in ([0.1, 0.0], [0.0, 1e-4]):
        with pytest.raises(Differs, match="1 of 2"):
            check_values(theirs + torch.tensor(wrong), theirs, measure, "sum")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_is_no_number_or_lost_is_not_excused(value: float) -> None:
    x = numbers(8)
    theirs, measure = x.exp(), measure_of(torch.exp, x, is_pointwise=True)
    wrong = theirs.clone()
    wrong[2] = value
    with pytest.raises(Differs):
        check_values(wrong, theirs, measure, "exp")
    # A value that overflows in PyTorch on the way must be right here, or lost in the same way.
    x = torch.tensor([200.0])
    norm: Function = lambda x: (x.exp() / x.exp()) * 2  # noqa: E731
    theirs, measure = norm(x), measure_of(norm, x)
    assert theirs.isnan().all()
    check_values(torch.tensor([2.0]), theirs, measure, "norm")
    with pytest.raises(Differs):
        check_values(torch.tensor([3.0]), theirs, measure, "norm")


def test_at_a_pole_infinity_is_as_good_as_any_large_number_of_its_sign() -> None:
    pole: Function = lambda x: 1 / (torch.pi - x)  # noqa: E731
    x = torch.tensor([torch.pi])
    theirs = torch.tensor([3e15])  # as if the subtraction had another rounding in each dtype
    far = Measure(lambda: torch.tensor([1e31]).double(), lambda _: torch.zeros(1), lambda _: torch.zeros(1), None)
    check_values(torch.tensor([torch.inf]), theirs, far, "pole")
    for wrong in (-torch.inf, torch.nan):
        with pytest.raises(Differs):
            check_values(torch.tensor([wrong]), theirs, far, "pole")
    x = torch.tensor([3.1415])
    near = measure_of(pole, x, is_pointwise=True)
    with pytest.raises(Differs):
        check_values(torch.tensor([torch.inf]), pole(x), near, "no pole of this operand")


def test_float64_computed_in_float32_is_found() -> None:
    x = numbers(50, dtype=torch.float64)
    narrow = x.float().sin().double()
    with pytest.raises(Differs):
        check_values(narrow, x.sin(), measure_of(torch.sin, x), "sin")
