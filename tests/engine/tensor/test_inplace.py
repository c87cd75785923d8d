"""Writes: in place through any view, refused where PyTorch refuses them, counted in the version counters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.twins import Program, cases, check_refused, check_same, numbers
from torch_xla._engine.dispatch import memory_ops

OVERLAPPING = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
PARTIAL = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(*size, device=d, dtype=dtype)


def written(write: Callable[[torch.Tensor], object], *size: int) -> Program:
    """A program that writes to a new tensor and returns it."""

    def program(d: str) -> Any:
        x = n(*size, d=d)
        write(x)
        return x

    return program


@cases(
    {
        "row": written(lambda x: x[1].add_(10), 3, 4),
        "column": written(lambda x: x[:, 2].mul_(-1), 3, 4),
        "steps": written(lambda x: x[::2, 1::2].fill_(7), 5, 6),
        "transpose": written(lambda x: x.t()[1].add_(10), 3, 4),
        "diagonal": written(lambda x: x.diagonal().zero_(), 4, 4),
        "flat": written(lambda x: x.view(-1)[3:5].fill_(9), 4, 4),
        "permuted slice": written(lambda x: x.permute(2, 0, 1)[1:, :, ::2].sub_(1), 2, 3, 4),
        "as_strided": written(lambda x: x.as_strided((2, 2), (1, 5), 2).fill_(-1), 12),
        "windows that do not meet": written(lambda x: x.unfold(0, 2, 3).add_(100), 11),
        "windows that meet": written(lambda x: x.unfold(0, 3, 1)[::3].add_(100), 11),
        "one element": written(lambda x: x[1, 2].copy_(torch.tensor(5.0)), 3, 4),
        "set item": written(lambda x: x.__setitem__((slice(1, None), 0), 8), 3, 4),
        "set item by list": written(lambda x: x.__setitem__([0, 2], 8.0), 3, 4),
        "set item by mask": written(lambda x: x.__setitem__(x > 5, -1.0), 3, 4),
        "set item from the host": written(lambda x: x.__setitem__(slice(1, 3), torch.ones(2, 4)), 3, 4),
        "the same row twice": written(lambda x: (x[0].add_(1), x[0].mul_(2)), 2, 2),
        "two views in turn": written(lambda x: (x.t().mul_(2), x[1:].add_(1), x.view(-1)[::5].zero_()), 3, 4),
        "itself": written(lambda x: x.add_(x).mul_(x), 3, 4),
        "other half": written(lambda x: x[:5].mul_(x[5:]), 10),
        "every other": written(lambda x: x[::2].add_(x[1::2]), 10),
        "itself through a view": written(lambda x: x.view(-1).add_(x.view(-1)), 2, 3),
        "broadcast of a part": written(lambda x: x[:2].copy_(x[2]), 3, 4),
        "an empty part": written(lambda x: x[:, :0].fill_(3), 3, 4),
        "chunks": written(lambda x: [c.fill_(i) for i, c in enumerate(x.chunk(3))], 7),
        "foreach on parts": written(lambda x: torch._foreach_add_([x[:2], x[2:]], [x.new_ones(2), x.new_ones(3)]), 5),
        "swap": written(lambda x: (t := x[0].clone(), x[0].copy_(x[1]), x[1].copy_(t)), 2, 3),
        "exponential": written(lambda x: x[1:].exp_().t().clamp_(max=20), 3, 2),
        "cumsum": written(lambda x: x.t().cumsum_(0), 3, 2),
        "sort": written(lambda x: x.copy_(x.sort(descending=True).values), 5),
        "tril": written(lambda x: x.t().tril_(), 3, 3),
    }
)
def test_a_write_through_a_view_reaches_its_base(program: Program) -> None:
    check_same(program, versions=True)


def test_all_views_see_a_write_through_one_of_them() -> None:
    def use(d: str) -> Any:
        x = n(4, 6, d=d)
        views = [x.t(), x[1:], x.view(-1)[::5], x.diagonal(), x.unfold(1, 2, 1), x[2, 3], x.expand(2, 4, 6)]
        x[1:3, 2:4].mul_(100)
        views[0][5].fill_(-1)
        return x, views

    check_same(use, versions=True)


EXPANDED = {
    "add_": lambda x, d: x.add_(1),
    "copy_": lambda x, d: x.copy_(n(3, 3, d=d)),
    "clamp_": lambda x, d: x.clamp_(0, 1),
    "fill_ with a tensor": lambda x, d: x.fill_(torch.tensor(1.0, device=d)),
    "cumsum_": lambda x, d: x.cumsum_(0),
    "scatter_": lambda x, d: x.scatter_(0, torch.zeros(1, 3, dtype=torch.int64, device=d), 2.0),
    "index_add_": lambda x, d: x.index_add_(0, torch.tensor([0, 1], device=d), n(2, 3, d=d)),
    "addcmul_": lambda x, d: x.addcmul_(n(3, 3, d=d), n(3, 3, d=d)),
    "normal_": lambda x, d: x.normal_(),
    "uniform_": lambda x, d: x.uniform_(),
    "random_": lambda x, d: x.random_(),
    "bernoulli_": lambda x, d: x.bernoulli_(0.5),
    "relu_": lambda x, d: x.relu_(),
    "lerp_": lambda x, d: x.lerp_(n(3, 3, d=d), 0.5),
    "eq_": lambda x, d: x.eq_(1),
    "slice assignment": lambda x, d: x.__setitem__(slice(0, 2), n(2, 3, d=d)),
    "out": lambda x, d: torch.add(n(3, 3, d=d), 1, out=x),
    "foreach": lambda x, d: torch._foreach_add_([x], 1),
}


@pytest.mark.parametrize("write", list(EXPANDED.values()), ids=list(EXPANDED))
def test_a_tensor_that_shows_an_element_twice_cannot_be_written(write: Callable[..., object]) -> None:
    check_refused(lambda d: write(n(1, 3, d=d).expand(3, 3), d))
    with pytest.raises(RuntimeError) as error:
        write(n(1, 3, d="xla").expand(3, 3), "xla")
    assert str(error.value) == OVERLAPPING


def test_one_number_may_be_written_to_an_expanded_tensor() -> None:
    def use(d: str) -> Any:
        x, y, z = n(1, 3, d=d), n(3, d=d), torch.ones((), device=d)
        x.expand(2, 3).fill_(7)
        y[None].expand(2, 3).zero_()
        torch._foreach_zero_([z.expand(4)])
        return x, y, z

    check_same(use, versions=True)


@cases(
    {
        "masked_fill_": lambda x, d: x.masked_fill_(n(2, 3, d=d) > 3, 9),
        "index_fill_": lambda x, d: x.index_fill_(0, torch.tensor([1], device=d), 5),
        "index_put_": lambda x, d: x.index_put_((torch.tensor([0], device=d),), torch.tensor(8.0, device=d)),
    }
)
def test_what_pytorch_deprecates_on_expanded_tensors_works_with_its_warning(program: Program) -> None:
    def use(d: str) -> Any:
        x = n(1, 3, d=d)
        with pytest.warns(UserWarning, match="on expanded tensors is deprecated"):
            program(x.expand(2, 3), d)
        return x

    check_same(use)


PARTLY = {
    "add_": lambda a, b, d: a.add_(b),
    "copy_": lambda a, b, d: a.copy_(b),
    "mul_ by a transpose": lambda a, b, d: a.view(3, 3).mul_(a.view(3, 3).t()),
    "addcmul_": lambda a, b, d: a.addcmul_(n(9, d=d), b),
    "lerp_": lambda a, b, d: a.lerp_(b, 0.5),
    "clamp_": lambda a, b, d: a.clamp_(min=b),
    "index_add_": lambda a, b, d: a.index_add_(0, torch.tensor([0, 1], device=d), b[:2]),
    "scatter_": lambda a, b, d: a.scatter_(0, torch.tensor([0, 1], device=d), b[:2]),
    "index_put_": lambda a, b, d: a.index_put_((torch.tensor([0, 1], device=d),), b[:2]),
    "out of add": lambda a, b, d: torch.add(a, 1, out=b),
    "out of exp": lambda a, b, d: torch.exp(a, out=b),
    "out of cat": lambda a, b, d: torch.cat([a[:3], a[3:6]], out=a[:6]),
    "out of sort": lambda a, b, d: torch.sort(a, out=(b, torch.empty(9, dtype=torch.int64, device=d))),
    "out of where": lambda a, b, d: torch.where(n(9, d=d) > 1, b, n(9, d=d), out=a),
}


@pytest.mark.parametrize("write", list(PARTLY.values()), ids=list(PARTLY))
def test_an_operand_may_not_be_half_overwritten(write: Callable[..., object]) -> None:
    def program(d: str) -> Any:
        x = n(16, d=d) + 1
        write(x[:9], x[2:11], d)

    check_refused(program)
    with pytest.raises(RuntimeError) as error:
        program("xla")
    assert str(error.value) == PARTIAL


def test_the_same_call_on_separate_memory_is_fine_before_and_after_a_refusal() -> None:
    x, y = torch.arange(10.0, device="xla"), torch.arange(10.0, device="xla")
    x[:5].add_(y[1:6])
    with pytest.raises(RuntimeError):
        x[:5].add_(x[1:6])
    x[:5].add_(y[1:6])
    assert x.tolist() == [2.0, 5.0, 8.0, 11.0, 14.0, 5.0, 6.0, 7.0, 8.0, 9.0]


@cases(
    {
        "an int tensor cannot hold a float": lambda d: n(3, d=d, dtype=torch.int64).add_(1.5),
        "nor the product with one": lambda d: n(3, d=d, dtype=torch.int64).mul_(n(3, d=d)),
        "nor a quotient": lambda d: n(3, d=d, dtype=torch.int64).div_(2),
        "a real tensor cannot hold a complex one": lambda d: n(3, d=d).mul_(1j),
        "the target does not grow": lambda d: n(3, d=d).add_(n(2, 3, d=d)),
        "a copy must fit": lambda d: n(2, 3, d=d).copy_(n(2, d=d)),
        "a copy cannot lose dimensions": lambda d: n(3, d=d).copy_(n(2, 3, d=d)),
        "a slice assignment must fit": lambda d: n(3, 3, d=d).__setitem__(0, n(2, d=d)),
    }
)
def test_a_result_that_does_not_fit_is_refused(program: Program) -> None:
    check_refused(program)


def test_a_refused_write_leaves_the_tensor_as_it_was() -> None:
    x = torch.arange(3, device="xla")
    with pytest.raises(RuntimeError):
        x.mul_(torch.ones(3, device="xla"))
    assert x.tolist() == [0, 1, 2]
    assert x._version == 0


@cases(
    {
        "broadcast": lambda d: torch.zeros(2, 3, device=d).copy_(n(3, d=d)),
        "to int": lambda d: torch.zeros(2, 3, dtype=torch.int64, device=d).copy_(n(2, 3, d=d) - 2.7),
        "to bool": lambda d: torch.zeros(3, dtype=torch.bool, device=d).copy_(n(3, d=d)),
        "to half": lambda d: torch.zeros(3, dtype=torch.float16, device=d).copy_(n(3, d=d) * 1e5),
        "to another order of memory": lambda d: torch.zeros(3, 2, device=d).t().copy_(n(2, 3, d=d)),
        "from the host": lambda d: torch.zeros(2, 3, device=d).copy_(torch.arange(3, dtype=torch.float64)),
        "to a part, from the host": lambda d: torch.zeros(2, 3, device=d)[:, 1].copy_(torch.ones(2)),
        "of itself": lambda d: (x := n(3, d=d)).copy_(x),
        "without waiting": lambda d: torch.zeros(3, device=d).copy_(torch.ones(3), non_blocking=True),
    }
)
def test_copy_converts_and_broadcasts(program: Program) -> None:
    check_same(program, versions=True)


@pytest.mark.parametrize("source", ["cpu", "xla"])
def test_copies_to_the_host_convert_and_broadcast(source: str) -> None:
    target = torch.zeros(2, 3, dtype=torch.int32)
    target.copy_(torch.tensor([1.7, 2.0, -3.9], device=source))
    target[:, 0].copy_(torch.tensor([8, 9], device=source))
    assert target.tolist() == [[8, 2, -3], [9, 2, -3]]


def test_a_lost_imaginary_part_is_warned_about_once_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_ops, "_has_warned", False)
    x = torch.zeros(3, device="xla")
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        x.copy_(torch.ones(3, device="xla") * 1j)
    x.copy_(torch.ones(3, device="xla") * 1j)
    assert x.tolist() == [0, 0, 0]
    monkeypatch.setattr(memory_ops, "_has_warned", False)
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        x.fill_(torch.tensor(2 + 1j, device="xla"))
    assert x.tolist() == [2, 2, 2]


@cases(
    {
        "exact": lambda d: torch.add(n(2, 2, d=d), 1, out=torch.empty(2, 2, device=d)),
        "empty grows": lambda d: torch.add(n(2, 2, d=d), 1, out=torch.empty(0, device=d)),
        "wider dtype": lambda d: torch.add(n(2, 2, d=d), 1, out=torch.empty(2, 2, dtype=torch.float64, device=d)),
        "sum to double": lambda d: torch.sum(n(2, 2, d=d), 1, out=torch.empty(2, dtype=torch.float64, device=d)),
        "comparison to float": lambda d: torch.eq(n(2, 2, d=d), 1, out=torch.empty(2, 2, device=d)),
        "part of a matrix": lambda d: torch.add(n(2, 2, d=d), 1, out=torch.zeros(4, 4, device=d)[1:3, ::2]),
        "transposed": lambda d: torch.add(n(3, 2, d=d), 1, out=torch.zeros(2, 3, device=d).t()),
        "an operand": lambda d: torch.mul(x := n(3, d=d), 2, out=x),
        "values and indices": lambda d: torch.max(
            n(2, 3, d=d), 1, out=(torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d))
        ),
        "sorted": lambda d: torch.sort(
            -n(2, 3, d=d), 1, out=(torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d))
        ),
        "strides of the operand": lambda d: torch.add(n(2, 3, d=d).t(), 1, out=torch.empty(0, device=d)),
        "channels last": lambda d: torch.add(
            n(1, 2, 3, 4, d=d).contiguous(memory_format=torch.channels_last), 1, out=torch.empty(0, device=d)
        ),
        "matrix product": lambda d: torch.mm(n(2, 3, d=d), n(3, 2, d=d), out=torch.empty(2, 2, device=d)),
        "concatenation": lambda d: torch.cat([n(2, d=d), n(3, d=d)], out=torch.empty(0, device=d)),
        "arange": lambda d: torch.arange(5, out=torch.empty(0, dtype=torch.int64, device=d)),
    }
)
def test_out_receives_the_result(program: Program) -> None:
    check_same(program, versions=True)


def test_an_out_of_the_wrong_size_is_resized_with_a_warning() -> None:
    def use(d: str) -> Any:
        out = torch.empty(3, device=d)
        with pytest.warns(
            UserWarning, match=r"it had shape \[3\], which does not match the required output shape \[2, 2"
        ):
            torch.add(n(2, 2, d=d), 1, out=out)
        return out

    check_same(use)


@cases(
    {
        "float to int": lambda d: torch.add(n(2, d=d), 1, out=torch.empty(2, dtype=torch.int64, device=d)),
        "matrix product to double": lambda d: torch.mm(
            n(2, 2, d=d), n(2, 2, d=d), out=torch.empty(2, 2, dtype=torch.float64, device=d)
        ),
        "gather to double": lambda d: torch.gather(
            n(3, d=d), 0, torch.tensor([0], device=d), out=torch.empty(1, dtype=torch.float64, device=d)
        ),
        "argmax to int": lambda d: torch.argmax(n(3, d=d), out=torch.empty((), dtype=torch.int32, device=d)),
        "with a gradient": lambda d: torch.add(n(2, d=d).requires_grad_(), 1, out=torch.empty(2, device=d)),
    }
)
def test_an_out_that_cannot_take_the_result_is_refused(program: Program) -> None:
    check_refused(program)


def test_an_out_on_the_host_is_refused() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.add(torch.ones(2, device="xla"), 1, out=torch.empty(2))


def versions(d: str) -> Any:
    x = n(4, d=d)
    seen = [x._version]
    for write in (
        lambda: x.add_(1),
        lambda: x.__setitem__(0, 3),
        lambda: x.view(2, 2).t().zero_(),
        lambda: x.detach().mul_(2),
        lambda: x.data.mul_(2),
        lambda: x.copy_(n(4, d=d)),
        lambda: x.copy_(torch.ones(4)),
        lambda: torch.add(x, 1, out=x),
        lambda: torch._foreach_mul_([x], 2),
        lambda: torch._foreach_add_([x], [x]),
        lambda: x.normal_(),
        lambda: x.__setitem__(torch.tensor([1], device=d), 2.0),
        lambda: x + 1,
        lambda: x.clone().add_(1),
        lambda: x.requires_grad_(False),
        lambda: x.resize_(3),
        lambda: x.set_(n(4, d=d)),
        lambda: x.unsqueeze_(0),
        lambda: torch.nn.init.uniform_(x),
    ):
        write()
        seen.append(x._version)
    return seen


def test_version_counters_count_what_they_count_on_the_cpu() -> None:
    assert versions("xla") == versions("cpu")


def test_views_share_a_version_counter_and_data_has_its_own() -> None:
    def use(d: str) -> Any:
        x = n(4, d=d)
        view, detached, data = x[1:], x.detach(), x.data
        view.add_(1)
        data.add_(1)
        return [t._version for t in (x, view, detached, data)]

    assert use("xla") == use("cpu")


def exponential(d: str) -> None:
    x = n(3, d=d).requires_grad_()
    y = x.exp()
    y.add_(1)
    y.sum().backward()


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_backward_through_an_overwritten_value_is_refused(device: str) -> None:
    # PyTorch 2.11 calls it ExpBackward0.
    expected = (
        "modified by an inplace operation.*which is output 0 of Exp.*, is at version 1; expected version 0 instead"
    )
    with pytest.raises(RuntimeError, match=expected):
        exponential(device)


@cases(
    {
        "leaf": lambda d: torch.zeros(3, device=d, requires_grad=True).add_(1),
        "view of a leaf": lambda d: torch.zeros(3, device=d, requires_grad=True)[0].add_(1),
        "assignment to a leaf": lambda d: torch.zeros(3, device=d, requires_grad=True).__setitem__(0, 1),
        "one of many views": lambda d: (torch.zeros(4, device=d, requires_grad=True) * 1).split(2)[0].add_(1),
        "resize of a leaf": lambda d: torch.zeros(3, device=d, requires_grad=True).resize_(2),
    }
)
def test_writes_that_autograd_forbids_are_refused(program: Program) -> None:
    check_refused(program)
