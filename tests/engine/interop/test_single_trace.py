"""A function of tensors and its gradients, from one run of its Python code."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import torch_xla
from torch_xla._engine.compat.names.torch import pytree
from torch_xla._engine.interop.single_trace import SingleTrace
from torch_xla.experimental import eager_mode_context


class Own(torch.autograd.Function):
    """A function with a gradient that is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * 7 * x


def without_gradients_inside(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        fixed = x * 2
    return fixed * y, fixed


def with_a_gradient_inside(x: Tensor, y: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return slope * y


def with_a_checkpoint(x: Tensor, y: Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda a: torch.sin(a) * y, x, use_reentrant=False)


def writes_to_what_it_makes(x: Tensor, y: Tensor) -> Tensor:
    made = x * 2
    made[0] = 0
    made[1:].mul_(y[1:])
    return made


def writes_to_an_argument(x: Tensor, y: Tensor) -> Tensor:
    y.add_(x.detach().sum())
    return x * y


FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    # The function, and for each of its two arguments whether it needs a gradient.
    "product": (lambda x, y: torch.sin(x) * y, "yn"),
    "without gradients": (lambda x, y: torch.sin(x) * y, "nn"),
    "own gradient": (lambda x, y: Own.apply(x).sin() + y, "yy"),
    "no_grad inside": (without_gradients_inside, "yy"),
    "gradient inside": (with_a_gradient_inside, "yy"),
    "checkpoint": (with_a_checkpoint, "yy"),
    "writes to what it makes": (writes_to_what_it_makes, "yy"),
    "writes to an argument": (writes_to_an_argument, "yn"),
    "arguments as results": (lambda x, y: (x, x * y, x, y), "yn"),
    "views": (lambda x, y: (x.t(), y[1:, :2], x.unsqueeze(1).expand(3, 2, 3), x.t() @ y), "yy"),
    "one result twice": (lambda x, y: [x * y] * 2, "yy"),
    "integers": (lambda x, y: (x.argmax(), x.sort(0), x > y), "yn"),
    "constants": (lambda x, y: (torch.ones(2, device=x.device), x + torch.arange(3, device=x.device), None, 3), "yn"),
    "unused": (lambda x, y: x * 2, "yy"),
    "structure": (lambda x, y: {"a": x + y, "b": {"c": (x.sum(),)}}, "yy"),
    "layer norm": (lambda x, y: F.layer_norm(x, (3,), y[0], y[1]), "yy"),
    "attention": (lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None], is_causal=True), "yy"),
    "complex": (lambda x, y: torch.fft.fft(x).abs() + y, "yy"),
    "transform": (lambda x, y: torch.func.grad(lambda a: (a**3 * y).sum())(x) * x, "yn"),
    "vmap": (lambda x, y: torch.vmap(torch.dot)(x, y), "yy"),
    "detached": (lambda x, y: x.detach() * x + y.detach(), "yy"),
}


def run(name: str, device: str, times: int) -> tuple[list[Any], int]:
    """Return results, arguments afterwards and gradients of some calls, and the number of runs of Python."""
    function, needed = FUNCTIONS[name]
    calls = 0

    def counted(*args: Tensor) -> Any:
        nonlocal calls
        calls += 1
        return function(*args)

    single: Any = None
    found: list[Any] = []
    generator = torch.Generator().manual_seed(3)
    for _ in range(times):
        args = [torch.randn(3, 3, generator=generator).to(device).requires_grad_(need == "y") for need in needed]
        if device == "xla":
            single = SingleTrace(counted, args) if single is None else single
            results = single(*args)
        else:
            results = counted(*args)
        leaves = pytree.tree_leaves(results)
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        found.append([each.stride() if isinstance(each, Tensor) else each for each in leaves])
        found += [(each.requires_grad, each.detach().cpu()) for each in tensors]
        total = sum((each.float() * 1.5).sum() for each in tensors if each.requires_grad)
        if isinstance(total, Tensor):
            total.backward()
        found += [each.detach().cpu() for each in args]
        found += [torch.zeros(3, 3) if each.grad is None else each.grad.cpu() for each in args]
    return found, calls


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, tuple):
            assert one[0] == other[0]
            one, other = one[1], other[1]
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        else:
            assert one == other


@pytest.mark.parametrize("eagerly", [False, True], ids=["recorded", "eager"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_runs_once_and_computes_as_it_does_by_itself(name: str, eagerly: bool) -> None:
    with eager_mode_context(eagerly):
        ours, calls = run(name, "xla", 3)
    theirs, _ = run(name, "cpu", 3)
    assert calls == 1
    assert_same(ours, theirs)


def test_a_result_that_is_an_argument_or_its_view_shares_its_memory() -> None:
    x = torch.zeros(2, 3).to("xla")
    single = SingleTrace(lambda x: (x, x[1]), [x])
    same, row = single(x)
    assert same is x
    row.add_(2)
    assert x.tolist() == [[0, 0, 0], [2, 2, 2]]
    wide = torch.zeros(4, 3).to("xla")
    single(wide[2:])[1].fill_(5)
    assert wide.sum(1).tolist() == [0, 0, 0, 15]


def test_random_numbers_are_those_of_the_backward_direction_and_new_in_each_call() -> None:
    x = torch.ones(64, device="xla", requires_grad=True)
    single = SingleTrace(lambda x: F.dropout(x, 0.5), [x])
    found = []
    for _ in range(2):
        x.grad = None
        y = single(x)
        y.sum().backward()
        assert x.grad is not None and torch.equal(y.detach().cpu(), x.grad.cpu())
        found.append(y.detach().cpu())
    assert not torch.equal(*found)


def test_a_trace_with_a_checkpoint_leaves_the_random_state() -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    torch_xla.manual_seed(7)
    expected = torch.rand(2, device="xla").tolist()
    torch_xla.manual_seed(7)
    SingleTrace(lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False), [x])
    assert torch.rand(2, device="xla").tolist() == expected


def test_gradients_of_gradients_are_refused_when_they_are_asked_for() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    single = SingleTrace(lambda x: x**3, [x])
    (slope,) = torch.autograd.grad(single(x).sum(), x, create_graph=True)
    assert slope.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="a pure function .* has gradients, but these have none"):
        slope.sum().backward()
    y = single(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None and x.grad.tolist() == [6, 6]


def test_what_was_kept_may_not_change_before_the_backward_direction() -> None:
    x, y = torch.ones(2, device="xla", requires_grad=True), torch.ones(2, device="xla")
    product = SingleTrace(lambda x, y: x * y, [x, y])(x, y)
    y.mul_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_errors_of_the_function_are_its_own() -> None:
    x = torch.ones(2, 3, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match="reduction dim"):
        SingleTrace(lambda x: x @ x, [x])
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        SingleTrace(lambda x: x.add_(1), [x])
    with pytest.raises(KeyError):
        SingleTrace(lambda x: {}["missing"], [x])
    assert (x * 2).sum().item() == 12  # no trace is left on


OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "matmul": torch.matmul,
    "tanh": lambda x, y: torch.tanh(x) + y,
    "turn": lambda x, y: x.t(),
    "rows": lambda x, y: torch.cat([x[1:], y[:1]]),
    "where": lambda x, y: torch.where(x > 0, x, y),
}


@settings(max_examples=15)
@given(
    names=st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=5), needed=st.tuples(*[st.booleans()] * 2)
)
def test_chains_of_operators(names: list[str], needed: tuple[bool, bool]) -> None:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        for name in names:
            x, y = OPERATORS[name](x, y), x
        return x

    found = []
    for device in ("xla", "cpu"):
        generator = torch.Generator().manual_seed(len(names))
        args = [torch.randn(3, 3, generator=generator).to(device).requires_grad_(need) for need in needed]
        result = SingleTrace(chain, args)(*args) if device == "xla" else chain(*args)
        if result.requires_grad:
            result.sum().backward()
        gradients = [torch.zeros(3, 3) if each.grad is None else each.grad.cpu() for each in args]
        found.append([result.detach().cpu(), *gradients])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
