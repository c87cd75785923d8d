"""Mistakes: the exception and the words of the CPU, at the user's line, and nothing is broken afterwards."""

import traceback
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.support.twins import Program, cases, check_refused, numbers, outcome


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(*size, device=d, dtype=dtype)


def ints(*values: int, d: str) -> torch.Tensor:
    return torch.tensor(values, device=d)


@cases(
    {
        "add": lambda d: n(3, d=d) + n(4, d=d),
        "where": lambda d: torch.where(n(3, d=d) > 1, n(3, d=d), n(4, d=d)),
        "product": lambda d: n(3, 4, d=d) @ n(3, 4, d=d),
        "mm of a vector": lambda d: torch.mm(n(3, d=d), n(3, 4, d=d)),
        "bmm": lambda d: torch.bmm(n(2, 3, 4, d=d), n(3, 4, 5, d=d)),
        "linear": lambda d: functional.linear(n(2, 3, d=d), n(4, 5, d=d)),
        "cat": lambda d: torch.cat([n(2, 3, d=d), n(3, 2, d=d)]),
        "cat of nothing": lambda d: torch.cat([]),
        "stack": lambda d: torch.stack([n(2, d=d), n(3, d=d)]),
        "reshape": lambda d: n(6, d=d).reshape(4, -1),
        "two unknown sizes": lambda d: n(6, d=d).reshape(-1, -1),
        "unflatten": lambda d: n(6, d=d).unflatten(0, (4, 2)),
        "split": lambda d: n(3, d=d).split([1, 1]),
        "chunk": lambda d: n(3, d=d).chunk(0),
        "layer norm": lambda d: functional.layer_norm(n(2, 3, d=d), (4,)),
        "convolution": lambda d: functional.conv2d(n(1, 2, 4, 4, d=d), n(1, 3, 2, 2, d=d)),
        "scatter": lambda d: n(3, d=d).scatter(0, ints(0, 1, d=d), n(1, d=d)),
        "index_add": lambda d: n(3, d=d).index_add(0, ints(0, 1, d=d), n(1, d=d)),
        "masked_fill": lambda d: n(3, d=d).masked_fill(n(3, d=d) > 1, n(2, d=d)),
        "cross entropy": lambda d: functional.cross_entropy(n(2, 3, d=d), ints(0, 1, 2, d=d)),
        "binary cross entropy": lambda d: functional.binary_cross_entropy(n(2, d=d), n(3, d=d)),
        "indices of unlike length": lambda d: n(3, d=d)[[0, 1], [0, 1, 2]],
        "a mask of another size": lambda d: n(3, d=d)[torch.tensor([True, False])],
        "negative size": lambda d: torch.empty(-1, device=d),
    }
)
def test_sizes_that_do_not_fit(program: Program) -> None:
    check_refused(program)


@cases(
    {
        "product": lambda d: n(2, 2, d=d) @ n(2, 2, d=d, dtype=torch.float64),
        "linear": lambda d: functional.linear(n(1, 3, d=d), n(2, 3, d=d, dtype=torch.float64)),
        "lerp": lambda d: torch.lerp(n(3, d=d), n(3, d=d, dtype=torch.float64), 0.5),
        "mean of integers": lambda d: n(3, d=d, dtype=torch.int64).mean(),
        "softmax of integers": lambda d: n(3, d=d, dtype=torch.int64).softmax(0),
        "minus a bool": lambda d: -(n(3, d=d) > 1),
        "difference of bools": lambda d: (n(3, d=d) > 1) - (n(3, d=d) > 1),
        "bits of floats": lambda d: n(3, d=d) & n(3, d=d),
        "gather": lambda d: n(3, d=d).gather(0, n(2, d=d)),
        "index_select": lambda d: n(3, d=d).index_select(0, n(2, d=d)),
        "index": lambda d: n(2, d=d)[torch.tensor(1.5, device=d)],
        "index of narrow integers": lambda d: n(3, d=d)[torch.tensor([1], dtype=torch.int8, device=d)],
        "write by narrow integers": lambda d: n(3, d=d).index_put_((ints(0, d=d).to(torch.int16),), n(1, d=d)),
        "embedding": lambda d: functional.embedding(n(2, d=d), n(3, 2, d=d)),
        "targets": lambda d: functional.nll_loss(n(2, 3, d=d), n(2, d=d)),
        "condition": lambda d: torch.where(n(3, d=d), 1, 2),
        "mask": lambda d: n(3, d=d).masked_fill(n(3, d=d), 2),
        "put into another dtype": lambda d: n(3, d=d).index_put_((ints(0, d=d),), n(1, d=d, dtype=torch.float64)),
        "scatter": lambda d: n(3, d=d).scatter(0, ints(0, d=d), n(1, d=d, dtype=torch.float64)),
        "name": lambda d: n(3, d=d)["a"],  # type: ignore[call-overload]
    }
)
def test_dtypes_that_do_not_fit(program: Program) -> None:
    check_refused(program)


@cases(
    {
        "dimension of a sum": lambda d: n(3, d=d).sum(1),
        "dimension twice": lambda d: n(3, 3, d=d).sum((0, 0)),
        "dimension of a softmax": lambda d: n(3, 3, d=d).softmax(3),
        "transpose": lambda d: n(3, d=d).transpose(0, 1),
        "dimension of an index": lambda d: n(3, d=d).index_select(2, ints(0, d=d)),
        "element": lambda d: n(3, d=d)[5],
        "element from the end": lambda d: n(3, d=d)[-4],
        "too many indices": lambda d: n(3, d=d)[0, 0],
        "element of a scalar": lambda d: torch.tensor(3.0, device=d)[0],
        "list": lambda d: n(3, d=d)[[0, 5]],
        "list in the second place": lambda d: n(3, 3, d=d)[:, [0, -4]],
        "list to write to": lambda d: n(3, d=d).__setitem__([7], 1.0),
        "host tensor": lambda d: n(3, d=d)[torch.tensor([3])],
        "device tensor made from numbers": lambda d: n(3, d=d)[ints(3, d=d)],
        "index_select from numbers": lambda d: n(3, d=d).index_select(0, ints(3, d=d)),
        "gather from numbers": lambda d: n(3, d=d).gather(0, ints(0, 9, d=d)),
        "take from numbers": lambda d: n(3, d=d).take(ints(4, d=d)),
        "index_fill from numbers": lambda d: n(3, d=d).index_fill(0, ints(3, d=d), 1.0),
        "embedding of numbers": lambda d: functional.embedding(ints(0, 7, d=d), n(3, 2, d=d)),
        "topk": lambda d: n(3, d=d).topk(5),
        "kthvalue": lambda d: n(3, d=d).kthvalue(5),
        "maximum of nothing": lambda d: n(0, 3, d=d).max(),
        "argmax of nothing": lambda d: n(0, 3, d=d).argmax(0),
    }
)
def test_numbers_out_of_range(program: Program) -> None:
    check_refused(program)


@cases(
    {
        "item of many": lambda d: n(2, d=d).item(),
        "item of none": lambda d: n(0, d=d).item(),
        "truth of many": lambda d: bool(n(2, d=d)),
        "length of a scalar": lambda d: len(torch.tensor(1.0, device=d)),
        "iteration of a scalar": lambda d: iter(torch.tensor(1.0, device=d)),
        "clamp to nothing": lambda d: n(3, d=d).clamp(),
        "arange backwards": lambda d: torch.arange(5, 0, device=d),
        "eye": lambda d: torch.eye(-1, device=d),
    }
)
def test_questions_without_an_answer(program: Program) -> None:
    check_refused(program)


@cases(
    {
        "sum": lambda x, host: x + host,
        "sum the other way round": lambda x, host: host + x,
        "in place": lambda x, host: x.add_(host),
        "in place on the host": lambda x, host: host.add_(x),
        "product": lambda x, host: x @ host,
        "cat": lambda x, host: torch.cat([x, host]),
        "where": lambda x, host: torch.where(x > 0, x, host),
        "linear": lambda x, host: functional.linear(x, host),
        "gather": lambda x, host: x.gather(0, host.long()),
        "foreach": lambda x, host: torch._foreach_add([x], [host]),
        "module": lambda x, host: torch.nn.Linear(3, 3)(x),
    }
)
def test_tensors_of_two_devices_do_not_mix(program: Program) -> None:
    x, host = torch.ones(3, 3, device="xla"), torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="to be on the same device") as error:
        program(x, host)  # type: ignore[call-arg]
    assert "xla:0" in str(error.value) and "cpu" in str(error.value)


def test_scalars_of_the_host_mix_with_device_tensors_as_they_do_with_those_of_cuda() -> None:
    x = torch.arange(3.0, device="xla")
    two = torch.tensor(2.0)
    for result, expected in (
        (x + two, [2, 3, 4]),
        (two * x, [0, 2, 4]),
        (torch.where(x > 1, two, x), [0, 1, 2]),
        (torch.maximum(x, two), [2, 2, 2]),
        (x.clone().mul_(two), [0, 2, 4]),
        (x * torch.tensor(2.0, dtype=torch.float64), [0, 2, 4]),
    ):
        assert result.dtype is torch.float32 and result.device.type == "xla"
        assert result.tolist() == expected


def test_the_traceback_ends_at_the_users_line() -> None:
    try:
        torch.ones(3, device="xla") + torch.ones(4, device="xla")  # this line
    except RuntimeError as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
        assert frames[-1].line is not None and "this line" in frames[-1].line
    else:
        pytest.fail("not refused")


def test_a_refused_call_records_nothing_and_the_next_one_works() -> None:
    x = torch.ones(3, device="xla")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            x + torch.ones(4, device="xla")
        with pytest.raises(IndexError):
            x[[5]]
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("make", [lambda: torch.empty(2, 2, layout=torch.sparse_coo, device="xla")])
def test_layouts_without_a_counterpart_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(NotImplementedError):
        make()


def test_a_dtype_without_a_counterpart_is_named() -> None:
    with pytest.raises(TypeError, match="torch.bits8 has no counterpart"):
        torch.zeros(2, dtype=torch.uint8).view(torch.bits8).to("xla")


@pytest.mark.parametrize("device", ["xla:99", torch.device("xla", 99)])
def test_an_ordinal_that_does_not_exist_is_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match="xla:99 does not exist: this process has"):
        torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match="xla:99 does not exist"):
        torch.ones(2).to(device)


HUGE = (1024,) * 5


@cases(
    {
        "rand": lambda d: torch.rand(*HUGE, device=d),
        "zeros": lambda d: torch.zeros(HUGE, device=d, dtype=torch.int8),
        "full": lambda d: torch.full(HUGE, 2, device=d),
        "empty": lambda d: torch.empty(HUGE, device=d),
        "randint": lambda d: torch.randint(9, HUGE, device=d),
        "arange": lambda d: torch.arange(1 << 47, device=d),
        "eye": lambda d: torch.eye(1 << 25, device=d),
        "sum": lambda d: n(1, d=d).expand(1 << 50) + 1,
        "copy": lambda d: n(1, d=d).expand(1 << 50).contiguous(),
        "outer": lambda d: torch.outer(n(1, d=d).expand(1 << 25), n(1, d=d).expand(1 << 25)),
        "repeat": lambda d: n(1, d=d).repeat(1 << 50),
        "ones_like": lambda d: torch.ones_like(n(1, d=d).expand(1 << 25, 1 << 25)),
        "new_zeros": lambda d: n(1, d=d).new_zeros(HUGE),
    }
)
def test_what_no_device_could_hold_is_refused_where_it_is_made(program: Program) -> None:
    """The CPU raises `RuntimeError`; PyTorch's accelerators raise the kind of it that is for memory."""
    theirs, ours = outcome(program, "cpu"), outcome(program, "xla")
    assert type(theirs) is RuntimeError and isinstance(ours, torch.OutOfMemoryError), (theirs, ours)
    assert "no device has that much memory" in str(ours)
