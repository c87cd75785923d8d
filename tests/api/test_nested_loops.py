"""Loops inside of loops, branches and whatever else traces them, and gradients of gradients: as PyTorch on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.utils import _pytree as pytree

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.utils.checkpoint
from torch_xla.experimental.custom_kernel import flash_attention
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import associative_scan, scan
from torch_xla.experimental.scan_layers import scan_layers

Body = Callable[..., Any]


def scanned(fn: Body, carry: torch.Tensor, xs: torch.Tensor) -> Any:
    """A scan on the device, and its rounds one after the other elsewhere."""
    if xs.device.type == "xla":
        return scan(fn, carry, xs)
    outputs = []
    for x in xs:
        carry, y = fn(carry, x)
        outputs.append(y)
    return carry, torch.stack(outputs)


def repeated(goes_on: Body, once: Body, carried: tuple[torch.Tensor, ...]) -> Any:
    """A while loop on the device, or by the host."""
    if carried[0].device.type == "xla":
        return while_loop(goes_on, once, carried)
    while goes_on(*carried):
        carried = once(*carried)
    return carried


def branched(which: torch.Tensor, first: Body, second: Body, operands: tuple[torch.Tensor, ...]) -> Any:
    """A branch on the device, or by the host."""
    if which.device.type == "xla":
        return torch.cond(which, first, second, operands)
    return (first if which else second)(*operands)


def cell(weight: torch.Tensor) -> Body:
    def fn(carry: torch.Tensor, x: torch.Tensor) -> Any:
        carry = torch.tanh(carry @ weight + x)
        return carry, (carry * x).sum(-1)

    return fn


def scan_in_scan(weight: torch.Tensor) -> Body:
    def fn(carry: torch.Tensor, x: torch.Tensor) -> Any:
        carry, ys = scanned(cell(weight), carry, torch.stack([x, 2 * x]))
        return carry, ys.sum(0)

    return fn


def cond_in_scan(weight: torch.Tensor) -> Body:
    def fn(carry: torch.Tensor, x: torch.Tensor) -> Any:
        carry = branched(x.sum() > 0, lambda c, x: torch.tanh(c @ weight) + x, lambda c, x: c * 2 - x, (carry, x))
        return carry, carry.sum(-1)

    return fn


def while_in_scan(weight: torch.Tensor) -> Body:
    def fn(carry: torch.Tensor, x: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64, device=x.device), carry.detach()
        rounds, _ = repeated(lambda n, v: v.abs().sum() > 1.0, lambda n, v: (n + 1, v * 0.5), start)
        carry = torch.tanh(carry @ weight + x) * rounds
        return carry, carry.sum(-1)

    return fn


def checkpoint_in_scan(weight: torch.Tensor) -> Body:
    checkpoint = (torch_xla if weight.device.type == "xla" else torch).utils.checkpoint.checkpoint

    def fn(carry: torch.Tensor, x: torch.Tensor) -> Any:
        carry = checkpoint(lambda c: torch.tanh(c @ weight + x), carry, use_reentrant=False)
        return carry, carry.sum(-1)

    return fn


def layers_in_scan(weight: torch.Tensor) -> Body:
    layers = [torch.nn.Linear(3, 3).to(weight.device) for _ in range(3)]
    for number, layer in enumerate(layers):
        layer.weight = torch.nn.Parameter(torch.linspace(-1, 1 + number, 9).reshape(3, 3).to(weight.device))
        layer.bias = None

    def fn(carry: torch.Tensor, x: torch.Tensor) -> Any:
        y = carry @ weight + x
        y = scan_layers(layers, y) if x.device.type == "xla" else torch.nn.Sequential(*layers)(y)
        return torch.tanh(y), y.sum(-1)

    return fn


def partial_sums_in_scan(weight: torch.Tensor) -> Body:
    def fn(carry: torch.Tensor, x: torch.Tensor) -> Any:
        sums = associative_scan(torch.add, carry) if x.device.type == "xla" else carry.cumsum(0)
        return torch.tanh(sums @ weight + x), sums.sum(-1)

    return fn


def operands(device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(3, 3), torch.randn(2, 3), torch.randn(4, 2, 3)]
    return [each.to(device).requires_grad_() for each in made]


def both_as_on_the_cpu(function: Callable[..., list[torch.Tensor]]) -> None:
    found = [[each.detach().cpu() for each in function(*operands(device))] for device in ("cpu", "xla")]
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


BODIES = [
    scan_in_scan,
    cond_in_scan,
    while_in_scan,
    checkpoint_in_scan,
    pytest.param(layers_in_scan, marks=pytest.mark.slow),
    pytest.param(partial_sums_in_scan, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("make", BODIES)
def test_bodies_hold_loops_and_branches(make: Callable[..., Body]) -> None:
    def gradients(weight: torch.Tensor, carry: torch.Tensor, xs: torch.Tensor) -> list[torch.Tensor]:
        last, ys = scanned(make(weight), carry, xs)
        (last.sum() + ys.square().sum()).backward()
        return [last, ys, weight.grad, carry.grad, xs.grad]

    both_as_on_the_cpu(gradients)


def test_a_loop_holds_loops_and_scans() -> None:
    def run(weight: torch.Tensor, carry: torch.Tensor, xs: torch.Tensor) -> list[torch.Tensor]:
        def once(n: torch.Tensor, v: torch.Tensor) -> Any:
            _, v = repeated(lambda m, _: m < 2, lambda m, u: (m + 1, torch.tanh(u @ weight)), (n * 0, v))
            return n + 1, scanned(cell(weight), v, xs)[0]

        with torch.no_grad():
            return list(repeated(lambda n, _: n < 3, once, (torch.tensor(0).to(xs.device), carry)))

    both_as_on_the_cpu(run)


@pytest.mark.parametrize("make", [cell, pytest.param(scan_in_scan, marks=pytest.mark.slow)])
def test_gradients_of_gradients(make: Callable[..., Body]) -> None:
    def twice(weight: torch.Tensor, carry: torch.Tensor, xs: torch.Tensor) -> list[torch.Tensor]:
        last, ys = scanned(make(weight), carry, xs)
        loss = last.sum() + ys.square().sum()
        grads = torch.autograd.grad(loss, [weight, carry, xs], create_graph=True)
        sum(each.square().sum() for each in grads).backward()  # type: ignore[union-attr]
        return [*grads, weight.grad, carry.grad, xs.grad]

    both_as_on_the_cpu(twice)


@pytest.mark.slow
def test_third_gradients() -> None:
    def thrice(weight: torch.Tensor, carry: torch.Tensor, xs: torch.Tensor) -> list[torch.Tensor]:
        last, _ = scanned(cell(weight), carry, xs)
        (first,) = torch.autograd.grad(last.sum(), weight, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), weight, create_graph=True)
        return [second, *torch.autograd.grad(second.sum(), [weight, carry, xs])]

    both_as_on_the_cpu(thrice)


def test_gradients_of_gradients_know_the_numbers_that_were_drawn() -> None:
    x = torch.randn(6, 40, device="xla", requires_grad=True)
    start = torch.ones(40, device="xla")
    _, dropped = scan(lambda c, x: (c, torch.nn.functional.dropout(x.exp(), 0.5)), start, x)
    (grad,) = torch.autograd.grad(dropped.sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(grad.detach().cpu(), dropped.detach().cpu())
    torch.testing.assert_close(again.cpu(), dropped.detach().cpu())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_scan_is_checkpointed(reentrant: bool) -> None:
    def run(weight: torch.Tensor, carry: torch.Tensor, xs: torch.Tensor) -> list[torch.Tensor]:
        def loss(carry: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
            last, ys = scanned(cell(weight), carry, xs)
            return last.sum() + ys.square().sum()

        torch.utils.checkpoint.checkpoint(loss, carry, xs, use_reentrant=reentrant).backward()
        return [weight.grad, carry.grad, xs.grad]

    both_as_on_the_cpu(run)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of Dynamo, between two graphs
@pytest.mark.parametrize("how", ["replayed", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_step_with_a_scan_in_compiled_modes(how: str) -> None:
    def run(weight: torch.Tensor, carry: torch.Tensor, xs: torch.Tensor) -> list[torch.Tensor]:
        def loss(carry: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
            last, ys = scanned(cell(weight), carry, xs)
            return last.sum() + ys.square().sum()

        def step(carry: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
            weight.grad = None
            found = inner(carry, xs)
            found.backward()
            with torch.no_grad():
                weight.sub_(0.01 * weight.grad)
            return found.detach()

        inner = torch.compile(loss, backend="openxla") if how == "compiled" and xs.device.type == "xla" else loss
        run_step = torch_xla.compile(step) if how == "replayed" and xs.device.type == "xla" else step
        return [*(run_step(carry.detach(), xs.detach()).clone() for _ in range(6)), weight]

    both_as_on_the_cpu(run)


def test_a_loop_between_two_integers_has_gradients() -> None:
    def run(weight: torch.Tensor, carry: torch.Tensor, xs: torch.Tensor) -> list[torch.Tensor]:
        if xs.device.type == "xla":
            result = fori_loop(1, 4, lambda i, v: torch.tanh(v @ weight) * i, carry)
        else:
            result = carry
            for i in range(1, 4):
                result = torch.tanh(result @ weight) * i
        result.sum().backward()
        return [result, weight.grad, carry.grad]

    both_as_on_the_cpu(run)
    x = torch.ones(2, device="xla")
    assert fori_loop(3, 3, lambda i, v: v + i, x).tolist() == [1, 1]


@pytest.mark.parametrize("upper", [3, torch.tensor(3)])
@pytest.mark.parametrize(
    "body, start, message",
    [
        (lambda i, v: v, [(1.0, 2.0)], r"takes 1 value and returned 2\. .* `fori_loop\(lower, upper, body, a, b\)`"),
        (lambda i, a, b: a, [1.0, 2.0], r"takes 2 values and returned 1\. .* return as many in a tuple"),
        (lambda i, v: v.sum(), [torch.ones(2)], r"returned float32\[\] for leaf 0 of what it carries, .* float32\[2\]"),
        (lambda i, v: {"b": v["a"]}, [{"a": 1.0}], r"must return what it carries, of the structure"),
    ],
)
def test_what_the_body_of_fori_loop_should_have_returned(upper: Any, body: Any, start: Any, message: str) -> None:
    start = pytree.tree_map(lambda leaf: torch.as_tensor(leaf).to("xla"), start)
    with pytest.raises(ValueError, match=f"(?s)the body (of fori_loop )?{message}"):
        fori_loop(0, upper, body, *start)


def test_a_loop_of_unknown_length_says_that_it_has_no_gradient() -> None:
    weight = torch.ones(2, 2, device="xla", requires_grad=True)
    count, result = while_loop(lambda n, v: n < 2, lambda n, v: (n + 1, v @ weight), (0, weight * 1))
    assert not count.requires_grad
    assert result.detach().tolist() == [[4.0, 4.0], [4.0, 4.0]]
    with pytest.raises(RuntimeError, match=r"a gradient is asked of while_loop .* Use fori_loop with"):
        result.sum().backward()


def test_one_hot_in_a_loop() -> None:
    def once(i: torch.Tensor, index: torch.Tensor, total: torch.Tensor) -> Any:
        return i + 1, index + 1, total + torch.nn.functional.one_hot(index, 4)

    start = (0, torch.tensor([0, 2]).to("xla"), torch.zeros(2, 4, dtype=torch.int64, device="xla"))
    _, _, total = while_loop(lambda i, *_: i < 2, once, start)
    assert total.tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    with pytest.raises(
        RuntimeError, match=r"reads a value of a tensor on the host at .*test_nested_loops.py:\d+, as a"
    ):
        while_loop(lambda i: i.sum() < 2, lambda i: torch.nn.functional.one_hot(i)[0], (start[1],))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # which PyTorch calls
def test_a_scan_is_part_of_the_one_graph_that_fullgraph_asks_for() -> None:
    weight = torch.tensor([2.0, 3.0], device="xla", requires_grad=True)

    def body(carry: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        x.add_(1)  # its own
        total = carry["total"] * weight + x
        return {"total": total}, (total, total.sin())

    def run(xs: torch.Tensor) -> torch.Tensor:
        carry, (totals, sines) = scan(body, {"total": torch.ones(2, device="xla")}, xs * 2)
        return totals.sum() + sines.sum() + carry["total"].prod()

    def gradients(function: Any) -> list[torch.Tensor]:
        xs = torch.arange(6.0).reshape(3, 2).to("xla").requires_grad_()
        result = function(xs)
        return [result.detach(), *torch.autograd.grad(result, [weight, xs])]

    graphs = met.counter_value("DynamoGraphByOperator")
    compiled = torch.compile(run, backend="openxla", fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(run))
    assert met.counter_value("DynamoGraphByOperator") == graphs
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(3, 2, device="xla")), run(torch.ones(3, 2, device="xla")))


def test_flash_attention_in_a_scan_sees_what_is_carried() -> None:
    k, v, q = torch.randn(3, 1, 2, 8, 4, device="xla").requires_grad_()

    def run(attend: Any) -> list[torch.Tensor]:
        last, _ = scan(lambda c, x: (attend(c, k, v) + x, x), q, torch.zeros(2, 1, device="xla"))
        return [last.detach(), *torch.autograd.grad(last.square().sum(), [q, k, v])]

    expected = run(lambda c, k, v: torch.softmax(c @ k.mT, -1) @ v)
    torch.testing.assert_close(run(flash_attention), expected, rtol=1e-4, atol=1e-5)


def test_what_ends_a_graph_says_so_where_there_may_be_but_one() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2)).to("xla")
    compiled = torch.compile(lambda x: scan_layers(layers, x), backend="openxla", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="scan_layers traces its layers itself.*full_graph=True"):
        compiled(torch.ones(1, 2, device="xla"))
