"""Loops, branches and scans on the device: what PyTorch computes on the CPU, as one program without a read."""

import gc
import importlib
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._higher_order_ops import map as map_loop
from torch._higher_order_ops import scan as torch_scan
from torch._higher_order_ops import while_loop as torch_while_loop

import torch_xla
import torch_xla.debug.metrics as met
from tests.support.writing_scans import writing_scan
from torch_xla._engine.compiled.loops import scan_loop
from torch_xla.experimental import eager_mode_context
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import associative_scan, scan, value_and_grad_partitioned
from torch_xla.experimental.scan_layers import scan_layers

PARTITIONS = [default_partition, min_cut_rematerialization_partition]


@contextmanager
def one_program() -> Iterator[None]:
    """Fails if anything inside reads a value on the host, or if what was recorded is more than one program."""
    torch_xla.sync()
    met.clear_all()
    yield
    assert not [name for name in met.counter_names() if name.startswith("aten::")]
    assert met.counter_value("UncachedCompile") is None
    torch_xla.sync()
    assert met.counter_value("UncachedCompile") in (1, None)


def unrolled(fn: Callable[..., Any], carry: Any, xs: torch.Tensor) -> tuple[Any, torch.Tensor]:
    outputs = []
    for x in xs:
        carry, y = fn(carry, x)
        outputs.append(y)
    return carry, torch.stack(outputs)


def cell(weight: torch.Tensor, bias: torch.Tensor, buffer: torch.Tensor) -> Callable[..., Any]:
    """A body that closes over a matrix, a vector that is the same in every round, and a buffer it writes to."""

    def fn(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = x * 1
        hidden.add_(carry @ weight.t())
        hidden = torch.tanh(hidden) * bias.exp()
        buffer.add_(hidden.detach().sum(0))
        return hidden, (hidden * x).sum(-1)

    return fn


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_scan_has_the_gradients_of_its_unrolled_form(partition: Any) -> None:
    found = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        leaves = [torch.randn(size).to(device).requires_grad_() for size in ((4, 4), (4,), (5, 3, 4), (3, 4))]
        weight, bias, xs, init = leaves
        buffer = torch.zeros(4, device=device)
        fn = cell(weight, bias, buffer)
        if device == "cpu":
            carry, ys = unrolled(fn, init.clone(), xs)
        else:
            carry, ys = writing_scan(fn, init, xs, partition)
        (carry.sum() + ys.square().sum()).backward()
        found.append([each.detach().cpu() for each in (carry, ys, buffer, *(leaf.grad for leaf in leaves))])
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=5)
@given(length=st.integers(1, 6), width=st.integers(1, 3), differentiable=st.booleans(), uses=st.booleans())
def test_scans_of_structures(length: int, width: int, differentiable: bool, uses: bool) -> None:
    def fn(carry: Any, x: Any) -> Any:
        total, (count, unused) = carry
        total = total * 0.5 + x["a"] * (x["b"] if uses else 2.0)
        return (total, (count + 1, unused)), {"total": total.cos(), "count": count, "none": None}

    a, b = torch.randn(length, width), torch.randn(length, width)
    results = []
    for device in ("cpu", "xla"):
        total = torch.zeros(width, device=device)
        xs = {"a": a.clone().to(device).requires_grad_(differentiable), "b": b.to(device)}
        carry = (total, (torch.tensor(0, device=device), torch.ones(2, device=device)))
        if device == "cpu":
            outputs = []
            for n in range(length):
                carry, y = fn(carry, {name: each[n] for name, each in xs.items()})
                outputs.append(y)
            ys = {name: torch.stack([y[name] for y in outputs]) for name in ("total", "count")}
        else:
            carry, ys = scan(fn, carry, xs)
            assert ys.pop("none") is None
        if differentiable:
            (carry[0].sum() + ys["total"].sum()).backward()
        results.append([carry[0], carry[1][0], carry[1][1], ys["total"], ys["count"], xs["a"].grad])
    for ours, expected in zip(results[1], results[0], strict=True):
        if expected is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("draws", [False, True], ids=["plain", "draws"])
def test_no_slices_are_no_rounds_with_gradients_of_any_order(draws: bool) -> None:
    weight, init = (torch.tensor(value, device="xla", requires_grad=True) for value in (2.0, 1.0))
    xs = torch.ones(0, 3, device="xla", requires_grad=True)
    seen = torch.zeros(3, device="xla")

    def fn(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.add_(x.detach())
        return carry + weight * x.sum(), torch.nn.functional.dropout(x, 0.5) if draws else x * carry

    carry, ys = writing_scan(fn, init, xs)
    assert carry.item() == 1 and ys.shape == (0, 3) and seen.sum().item() == 0
    found = torch.autograd.grad(carry * 3 + ys.sum(), (weight, init, xs), create_graph=True)
    assert [each.tolist() for each in found] == [0.0, 3.0, []]
    second = torch.autograd.grad(found[0] + found[1] + found[2].sum(), (weight, init, xs), allow_unused=True)
    assert [each.tolist() for each in second if each is not None] in ([0.0, 0.0, []], [0.0, []], [])


def test_a_body_may_write_to_its_arguments() -> None:
    def fn(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        carry.add_(x)
        x.zero_()
        return carry, carry

    init, xs = torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla")
    carry, ys = scan(fn, init, xs)
    assert carry.tolist() == [3.0, 3.0] and ys[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert init.sum().item() == 0 and xs.sum().item() == 6


def test_each_round_draws_other_numbers_and_the_gradient_knows_them() -> None:
    x = torch.ones(20, 50, device="xla", requires_grad=True)
    _, dropped = scan(lambda c, x: (c, torch.nn.functional.dropout(x, 0.5)), torch.zeros((), device="xla"), x)
    dropped.sum().backward()
    kept = dropped.detach().cpu()
    assert len({tuple(row.tolist()) for row in kept}) == 20
    torch.testing.assert_close(x.grad.cpu(), kept)  # both are 2 where an element was kept


def test_what_a_body_closes_over_and_returns_as_it_is_has_a_gradient() -> None:
    weight = torch.tensor([2.0, 3.0], device="xla", requires_grad=True)
    xs = torch.ones(3, 2, device="xla")
    last, outputs = scan(lambda carry, x: (carry * weight + x, weight), torch.zeros(2, device="xla"), xs)
    (outputs.sum() + last.sum()).backward()
    assert weight.grad is not None and weight.grad.tolist() == [3 + 5, 3 + 7]  # of 1 + w + w² it is 1 + 2w


def test_a_body_normalizes_by_statistics_and_solves_equations() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(3).to(device)
        xs = torch.randn(2, 3, 3).to(device).requires_grad_()
        eye = torch.eye(3, device=device)

        def body(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return carry + norm(x), torch.linalg.solve(x @ x.T + eye, carry)

        last, outputs = (writing_scan if device == "xla" else unrolled)(body, eye, xs)
        assert norm.running_mean is not None and norm.running_var is not None
        (last.square().sum() + outputs.sum()).backward()
        assert xs.grad is not None and norm.weight.grad is not None
        return [last, outputs, xs.grad, norm.weight.grad, norm.running_mean, norm.running_var]

    torch.testing.assert_close([each.cpu() for each in run("xla")], run("cpu"), atol=1e-4, rtol=1e-3)


def test_what_does_not_depend_on_what_has_gradients_has_none() -> None:
    weight = torch.tensor(2.0, device="xla", requires_grad=True)
    init = (torch.ones((), device="xla"), torch.zeros((), device="xla"))
    xs = torch.ones(3, device="xla")
    (last, count), outputs = scan(lambda carry, x: ((carry[0] * weight, carry[1] + x), carry[1]), init, xs)
    assert last.requires_grad and not count.requires_grad and not outputs.requires_grad
    plain, _ = scan(lambda carry, x: (carry + weight.detach() * x, x), init[0], xs)
    assert not plain.requires_grad and plain.item() == 7


def test_a_pure_function_is_traced_once() -> None:
    calls = []

    def fn(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return carry + x, carry

    x = torch.randn(3, 2, device="xla", requires_grad=True)
    scan(fn, x[0], x, is_fn_pure=True)
    traced = len(calls)
    scan(fn, x[0] + 1, x, is_fn_pure=True)[0].sum().backward()
    assert len(calls) == traced
    scan(fn, x[0], x)
    assert len(calls) > traced
    assert x.grad is not None


def test_a_pure_function_is_traced_again_where_it_computes_in_other_dtypes() -> None:
    weight, rows = torch.ones(3, 3, device="xla"), torch.ones(2, 3, device="xla")

    def product(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return carry, x @ weight * torch.tensor(1.5, device="xla")

    def dtype() -> torch.dtype:
        return scan(product, torch.zeros(1, device="xla"), rows, is_fn_pure=True)[1].dtype

    assert dtype() is torch.float32
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert dtype() is torch.bfloat16
    assert dtype() is torch.float32

    def constant(carry: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return carry, torch.ones(2, device="xla")

    found = []
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            found.append(scan(constant, weight, rows, is_fn_pure=True)[1].dtype)
        finally:
            torch.set_default_dtype(torch.float32)
    assert found == [torch.float32, torch.float64]


@pytest.mark.parametrize(
    ("fn", "xs", "message"),
    [
        (lambda c, x: (c.double(), x), torch.ones(2, 3), r"body of scan returned float64\[3\] for leaf 0"),
        (lambda c, x: (c[:2], x), torch.ones(2, 3), r"returned float32\[2\] for leaf 0 of what it carries, which is f"),
        (lambda c, x: ((c, c), x), torch.ones(2, 3), "must return what it carries, of the structure"),
        (lambda c, x: c, torch.ones(2, 3), r"must return \(carry, y\); it returned a"),
        (lambda c, x: (c, x), torch.ones(()), r"`xs` of one length along their first dimension; got \[\]"),
        (lambda c, x: (c, c), {"a": torch.ones(2, 3), "b": torch.ones(3)}, r"one length.*got \[2, 3\], \[3\]"),
        (lambda c, x: (c, x), None, "needs at least one tensor in `xs`"),
        (3, torch.ones(2, 3), "takes a function of carry and slice; got a int"),
    ],
    ids=range(8),
)
def test_mistakes_are_named(fn: Any, xs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scan(
            fn, torch.ones(3, device="xla"), torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("xla"), xs)
        )


def test_partial_results() -> None:
    x = torch.randn(7, 3)
    ours = x.to("xla").requires_grad_()
    result = associative_scan(lambda a, b: a + b, ours)
    torch.testing.assert_close(result.detach().cpu(), x.cumsum(0), rtol=1e-5, atol=1e-5)
    result.sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), torch.arange(7.0, 0, -1)[:, None].expand(7, 3))


def test_the_device_decides_how_often() -> None:
    target = torch.tensor(2.0, device="xla")

    def improve(count: torch.Tensor, guess: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return count + 1, (guess + target / guess) / 2

    with one_program():
        count, root = while_loop(lambda count, guess: (guess * guess - target).abs() > 1e-5, improve, (0, target + 98))
    rounds, guess = 0, torch.tensor(100.0)
    while (guess * guess - 2).abs() > 1e-5:
        rounds, guess = rounds + 1, (guess + 2 / guess) / 2
    assert count.item() == rounds
    torch.testing.assert_close(root.cpu(), guess)


def test_decoding_to_an_end_token_is_one_program() -> None:
    torch.manual_seed(0)
    following, end = torch.randperm(16), 3
    table = following.to("xla")

    def step(place: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        last = tokens.index_select(0, place.reshape(1) - 1)
        return place + 1, tokens.index_copy(0, place.reshape(1), table[last])

    def goes_on(place: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return (tokens.index_select(0, place.reshape(1) - 1) != end) & (place < 16)

    start = torch.zeros(16, dtype=torch.int64, device="xla")
    with one_program():
        place, tokens = while_loop(goes_on, step, (torch.tensor(1, device="xla"), start))
    expected = [0]
    while expected[-1] != end and len(expected) < 16:
        expected.append(int(following[expected[-1]]))
    assert tokens[: place.item()].tolist() == expected


@pytest.mark.parametrize("way", ["recorded", "eager", "replay", "openxla"])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_a_body_without_an_index_is_called_as_pytorch_xla_calls_it(way: str, as_tensors: bool) -> None:
    bounds = [torch.tensor([n], dtype=torch.int32, device="xla") if as_tensors else n for n in (2, 7)]

    def loop(x: torch.Tensor) -> torch.Tensor:
        left, y = fori_loop(*bounds, lambda y: y * 2, x)
        return y + left

    run: Any = loop
    if way == "replay":
        run = torch_xla.compile(loop, replay=True)
    elif way == "openxla":
        run = torch.compile(loop, backend="openxla")
    with eager_mode_context(way == "eager"):
        for _ in range(5):
            assert run(torch.ones(3, device="xla")).tolist() == [32, 32, 32]


def test_random_numbers_in_a_loop() -> None:
    def add(i: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return total + torch.rand_like(total)

    total = fori_loop(0, 50, add, torch.zeros(100, device="xla"))
    assert 20 < total.mean().item() < 30 and len(set(total.tolist())) > 90


@pytest.mark.parametrize(
    ("condition", "body", "error", "message"),
    [
        (lambda x: x.sum() > 0, lambda x: x.double(), ValueError, r"while_loop returned float64\[3\] for leaf 0"),
        (lambda x: x > 0, lambda x: x - 1, TypeError, r"a tensor of one element; got bool\[3\]"),
        (lambda x: True, lambda x: x - 1, TypeError, "a tensor of one element; got True"),
    ],
    ids=range(3),
)
def test_mistakes_of_a_loop_are_named(condition: Any, body: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        while_loop(condition, body, (torch.ones(3, device="xla"),))


def test_a_loop_that_writes_to_what_it_closes_over_is_refused() -> None:
    buffer = torch.zeros(3, device="xla")

    def body(x: torch.Tensor) -> torch.Tensor:
        buffer.add_(x)
        return x - 1

    with pytest.raises(RuntimeError, match=r"writes to float32\[3\], which it closes over; carry"):
        while_loop(lambda x: x.sum() > 0, body, (torch.ones(3, device="xla"),))
    assert buffer.sum().item() == 0


class Programs:
    """PyTorch's own loops and branches, each a function of a matrix."""

    @staticmethod
    def repeat(x: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return torch_while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, (x * 2).sin()), (start, x))

    @staticmethod
    def choose(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 2, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))

    @staticmethod
    def accumulate(x: torch.Tensor) -> Any:
        return torch_scan(lambda c, x: (c + x, c * x), x[0].clone(), x)

    @staticmethod
    def each(x: torch.Tensor) -> Any:
        return map_loop(lambda x: (x * 2).exp(), x)

    @staticmethod
    def nested(x: torch.Tensor) -> Any:
        def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.cond(x.sum() > 0, lambda x: x - 1.0, lambda x: x + 2.0, (x,))

        return torch_while_loop(lambda i, x: i < 4, body, (torch.zeros((), dtype=torch.int64, device=x.device), x))


@pytest.mark.parametrize("name", ["repeat", "choose", "accumulate", "each", "nested"])
@pytest.mark.parametrize("compiled", [False, True])
def test_pytorchs_own_loops_run_on_the_device(name: str, compiled: bool) -> None:
    torch._dynamo.reset()
    function, x = getattr(Programs, name), torch.randn(4, 3)
    expected = function(x)
    ours = x.to("xla")
    torch_xla.sync()
    met.clear_all()
    found = torch.compile(function, backend="openxla")(ours) if compiled else function(ours)
    assert not [counter for counter in met.counter_names() if counter.startswith(("aten::", "DynamoGraphByOperator"))]
    for result, wanted in zip(
        torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True
    ):
        torch.testing.assert_close(result.cpu(), wanted, rtol=1e-5, atol=1e-5)
    assert met.counter_value("UncachedCompile") == 1


@pytest.mark.parametrize("shift", [-10.0, 10.0])
def test_a_branch_has_gradients(shift: float) -> None:
    torch._dynamo.reset()
    grads = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        x = (torch.ones(3) + shift).to(device)
        weight = torch.linspace(1, 2, 3).to(device).requires_grad_()
        y = torch.cond(x.sum() > 0, lambda w, x: (w * x).sin(), lambda w, x: (w * x).cos(), (weight, x))
        y.sum().backward()
        grads.append(weight.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


class Layer(torch.nn.Module):
    def __init__(self, width: int = 8, rate: float = 0.0, number: int = 0) -> None:
        super().__init__()
        self.number = number
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.norm, self.dropout = torch.nn.BatchNorm1d(width), torch.nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


@pytest.mark.parametrize(
    ("partition", "pure"), [pytest.param(PARTITIONS[0], False, marks=pytest.mark.slow), (PARTITIONS[1], True)]
)
def test_layers_train_as_one_after_the_other(partition: Any, pure: bool) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(Layer(number=number) for number in range(4)))
    ours = torch.nn.Sequential(*(Layer(number=number) for number in range(4)))
    ours.load_state_dict(layers.state_dict())
    ours.to("xla")
    for _ in range(2):
        x = torch.randn(5, 8)
        y, given = x.to("xla").requires_grad_(), x.clone().requires_grad_()
        result, expected = scan_layers(ours, y, partition, pure), layers(given)
        result.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(result.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y.grad.cpu(), given.grad, rtol=1e-3, atol=1e-3)
    for (name, our), (_, their) in zip(ours.named_parameters(), layers.named_parameters(), strict=True):
        torch.testing.assert_close(
            our.grad.cpu(), their.grad, rtol=1e-3, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )
    for (name, our), (_, their) in zip(ours.named_buffers(), layers.named_buffers(), strict=True):
        torch.testing.assert_close(
            our.cpu(), their, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_what_is_kept_of_pure_functions_and_layers_does_not_keep_them() -> None:
    def used() -> list[Any]:
        weight = torch.ones(2, 2, device="xla", requires_grad=True)

        def fn(c: torch.Tensor, x: torch.Tensor) -> Any:
            return c @ weight + x, c

        layers = [torch.nn.Linear(2, 2).to("xla") for _ in range(2)]
        x = torch.ones(3, 2, 2, device="xla")
        scan(fn, x[0], x, is_fn_pure=True)[0].sum().backward()
        scan_layers(layers, x, is_layer_pure=True).sum().backward()
        return [weakref.ref(fn), weakref.ref(layers[0]), weakref.ref(weight)]

    found = used()
    torch_xla.sync(wait=True)
    gc.collect()
    assert [each() for each in found] == [None, None, None]


def test_dropout_differs_from_layer_to_layer_and_hooks_run() -> None:
    layers = torch.nn.ModuleList(torch.nn.Dropout(0.5) for _ in range(3))

    def double(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 2

    for layer in layers:
        layer.register_forward_hook(double)
    result = scan_layers(layers, torch.ones(4000, device="xla"))
    assert set(result.tolist()) == {0.0, 64.0}  # 2 for dropout, 2 for the hook, three times
    assert 350 < int((result > 0).sum()) < 650  # an eighth is left: not the same half three times


def test_shared_parameters_get_the_sum_of_their_gradients() -> None:
    shared = torch.nn.Linear(3, 3).to("xla")
    layers = [torch.nn.Sequential(shared, torch.nn.Linear(3, 3).to("xla")) for _ in range(3)]
    x = torch.randn(2, 3, device="xla")
    scan_layers(layers, x).sum().backward()
    grad, shared.weight.grad = shared.weight.grad, None
    torch.nn.Sequential(*layers)(x).sum().backward()
    torch.testing.assert_close(grad.cpu(), shared.weight.grad.cpu(), rtol=1e-4, atol=1e-5)


class Scaled(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Layer(8), Layer(8), Layer(8), Layer(8, 0.5)], r"layer 3 differs from layer 0 in dropout.p: 0.5, where"),
        ([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, bias=False)], r"layer 1 .* in bias: in one of them alone"),
        ([torch.nn.ReLU(), torch.nn.GELU()], r"layer 1 .* the layer itself: a GELU, where layer 0 has a ReLU"),
        ([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).double()], r"in weight: float64\[8, 8\] on xla, where layer 0"),
        ([torch.nn.ReLU(), torch.nn.ReLU().eval()], r"in training: False, where layer 0 has True"),
        ([Scaled(1.0), Scaled(1.0), Scaled(2.0)], r"layer 2 .* in scale: 2.0, where layer 0 has 1.0"),
        ([torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential()], r"in its modules: '0' is in one of them alone"),
    ],
    ids=range(7),
)
def test_layers_that_differ_are_named(layers: list[torch.nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scan_layers([layer.to("xla") for layer in layers], torch.ones(4, 8, device="xla"))


def test_parametrized_layers_are_equal() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3)).to(device) for _ in range(2)]
        x = torch.ones(2, 3, device=device)
        result = scan_layers(layers, x) if device == "xla" else layers[1](layers[0](x))
        result.sum().backward()
        return [result, *(each.grad for layer in layers for each in layer.parameters() if each.grad is not None)]

    torch.testing.assert_close([each.cpu() for each in run("xla")], run("cpu"))


def test_no_layer() -> None:
    x = torch.ones(2, device="xla")
    assert scan_layers([], x) is x


def test_kinds_of_operands_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch_xla.experimental.scan")
    monkeypatch.setattr(module, "_MOST", 2)

    def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return carry + x, carry * x

    for width in range(1, 5):
        carry, _ = scan(step, torch.zeros(width, device="xla"), torch.ones(2, width, device="xla"), is_fn_pure=True)
        assert carry.tolist() == [2.0] * width
    assert len(module._recipes[step]) <= 2


def test_transforms_in_a_body_see_what_it_closes_over() -> None:
    """As round by round; a transform wraps its arguments before any function of PyTorch's sees them."""

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        slope = torch.func.grad(lambda y: (y * weight).sin().sum())(carry)
        by_weight = torch.func.grad(lambda w: (w * x).sin().sum())(weight)
        rows = torch.func.vmap(lambda w, y: w * y)(weight, x)
        return carry - 0.1 * slope * x + by_weight, rows + torch.func.vjp(torch.sin, weight)[1](x)[0]

    found = []
    for run, device in ((scan, "xla"), (unrolled, "cpu")):
        weight = torch.linspace(-1, 1, 3).to(device).requires_grad_()
        carry, ys = run(body, torch.ones(3).to(device), torch.linspace(-2, 2, 12).reshape(4, 3).to(device))
        (carry.sum() + ys.square().sum()).backward()
        assert weight.grad is not None
        found.append([each.detach().cpu() for each in (carry, ys, weight.grad)])
    torch.testing.assert_close(*found)


def test_a_body_differentiates_a_layer_of_one_row() -> None:
    def body(layer: torch.nn.Module, carry: torch.Tensor) -> torch.Tensor:
        return carry - 0.1 * torch.func.grad(lambda x: layer(x).square().sum())(carry)

    torch.manual_seed(0)
    layer, start = torch.nn.Linear(3, 3), torch.ones(3)
    expected = body(layer, body(layer, start))
    on_device = layer.to("xla")
    found, _ = scan(
        lambda carry, x: (body(on_device, carry) + 0 * x, x), start.to("xla"), torch.zeros(2, 1, device="xla")
    )
    torch.testing.assert_close(found.cpu(), expected)


def test_a_transform_around_a_scan_is_refused() -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        return scan(lambda carry, y: (carry * y, y), torch.ones((), device="xla"), x)[0]

    for transform in (torch.func.grad, torch.func.vmap):
        with pytest.raises(NotImplementedError, match="scan inside of torch.func.grad, vmap or another transform"):
            transform(last)(torch.ones(3, *(() if transform is torch.func.grad else (2,)), device="xla"))


@pytest.mark.slow
def test_steps_with_loops_are_replayed() -> None:
    # In a process of its own: pytest writes down what PyTorch logs of a trace, and a step that logs is not replayed.
    ran = subprocess.run([sys.executable, "-m", "tests.support.replayed_loops"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def written_views(device: str, run: Callable[..., Any]) -> list[torch.Tensor]:
    buffer = torch.arange(6.0, device=device).view(2, 3)
    row, turned, first = buffer[1], buffer.t(), buffer[0].expand(4, 3)

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        row.add_(x)
        turned[0].mul_(2)
        return carry + buffer.sum(0) + first.sum(0), turned.clone()

    carry, ys = run(body, torch.zeros(3, device=device), torch.ones(3, 3, device=device))
    return [carry, ys, buffer]


def overlapping_views(device: str, run: Callable[..., Any]) -> list[torch.Tensor]:
    buffer = torch.arange(4.0, device=device)
    start, end = buffer[:3], buffer[1:]

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        start.add_(x)
        end.mul_(2)
        return carry + start.sum(), end.clone()

    carry, ys = run(body, torch.zeros(1, device=device), torch.ones(3, 1, device=device))
    return [carry, ys, buffer]


def views_in_nested_bodies(device: str, run: Callable[..., Any]) -> list[torch.Tensor]:
    buffer = torch.arange(8.0, device=device)
    start, end = buffer[:5], buffer[3:]

    def inside(carry: torch.Tensor, x: torch.Tensor) -> Any:
        start.add_(x)
        return carry + end.sum(), end * 2

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        end.mul_(1.5)
        carry, ys = run(inside, carry, x)
        return carry + start.sum(), ys

    carry, ys = run(body, torch.zeros((), device=device), torch.ones(3, 2, device=device))
    return [carry, ys, buffer]


def views_with_gradients(device: str, run: Callable[..., Any]) -> list[torch.Tensor]:
    weight = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    buffer = torch.zeros(2, 3, device=device)
    row = buffer[1]

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        row.add_(weight * x)
        return carry + buffer.sum(0) * weight, carry * 2

    carry, ys = run(body, torch.zeros(3, device=device), torch.ones(3, 3, device=device))
    (carry.sum() + ys.sum()).backward()
    assert weight.grad is not None
    return [carry, ys, buffer, weight.grad]


@pytest.mark.parametrize(
    "program",
    [written_views, overlapping_views, views_in_nested_bodies, views_with_gradients],
    ids=lambda p: p.__name__,
)
def test_a_body_sees_what_it_writes_through_every_view(program: Callable[..., list[torch.Tensor]]) -> None:
    ours, theirs = program("xla", writing_scan), program("cpu", unrolled)
    torch.testing.assert_close([each.detach().cpu() for each in ours], [each.detach() for each in theirs])


def test_state_that_is_carried_and_closed_over() -> None:
    """The next round receives the last write: the memory itself cannot be distinguished from a copy."""

    def run(device: str, loop: Callable[..., Any], returns_state: bool) -> list[torch.Tensor]:
        state = torch.ones(3, device=device)

        def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
            new = carry * 2 + x
            state.copy_(new)
            return state if returns_state else new, new * 1

        return [*loop(body, state, torch.ones(3, 3, device=device)), state]

    for returns_state in (False, True):
        ours, theirs = run("xla", writing_scan, returns_state), run("cpu", unrolled, returns_state)
        torch.testing.assert_close([each.cpu() for each in ours], theirs)


def written_then_carried(buffer: torch.Tensor) -> Any:
    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        buffer.add_(x)
        return carry + buffer, carry

    return scan(body, buffer, torch.ones(2, 3, device="xla"))


def carried_as_it_is(buffer: torch.Tensor) -> Any:
    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        buffer.add_(x)
        return buffer, carry * 2  # in the second round `carry` is the buffer

    return scan(body, torch.zeros(3, device="xla"), torch.ones(2, 3, device="xla"))


def carried_two_rounds_later(buffer: torch.Tensor) -> Any:
    def body(carry: Any, x: torch.Tensor) -> Any:
        early = carry[0] + 0
        buffer.add_(x)
        return (buffer, carry[0]), early + carry[1]

    zeros = torch.zeros(3, device="xla")
    return scan(body, (zeros, zeros), torch.ones(2, 3, device="xla"))


def written_and_sliced(buffer: torch.Tensor) -> Any:
    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        carry = carry + x
        buffer[2:].zero_()
        return carry, x

    return scan(body, torch.zeros((), device="xla"), buffer)


def argument_written(buffer: torch.Tensor) -> Any:
    return scan(lambda carry, x: (carry.add_(x) + buffer, x), buffer, torch.ones(2, 3, device="xla"))


def argument_of_a_while_loop_written(buffer: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.add_(1) + buffer), (0, buffer))


def result_of_a_while_loop_written(buffer: torch.Tensor) -> Any:
    def body(i: torch.Tensor, x: torch.Tensor) -> Any:
        x.add_(1)
        return i + 1, buffer

    return while_loop(lambda i, x: i < 3, body, (0, torch.zeros(3, device="xla")))


@pytest.mark.parametrize(
    "program",
    [
        written_then_carried,
        carried_as_it_is,
        carried_two_rounds_later,
        written_and_sliced,
        argument_written,
        argument_of_a_while_loop_written,
        result_of_a_while_loop_written,
    ],
    ids=lambda program: program.__name__,
)
def test_a_write_that_a_copy_would_miss_is_refused(program: Callable[[torch.Tensor], Any]) -> None:
    buffer = torch.ones(3, device="xla")
    with pytest.raises(
        RuntimeError, match=r"writes to memory that it sees in two ways: .* Give the loop a `.clone\(\)`"
    ):
        program(buffer)
    assert buffer.tolist() == [1, 1, 1]


def test_a_body_is_traced_again_where_its_argument_is_what_it_writes_to() -> None:
    buffer = torch.zeros(3, device="xla")

    def body(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        buffer.add_(x)
        return carry + buffer, carry

    xs, zeros = torch.ones(2, 3, device="xla"), torch.zeros(3, device="xla")
    recipe = scan_loop.trace(body, zeros, xs)
    assert scan_loop.run(recipe, zeros, xs, scan_loop.default_partition)[0].tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="sees in two ways"):
        scan_loop.run(recipe, buffer, xs, scan_loop.default_partition)
    assert scan_loop.run(recipe, buffer.clone(), xs, scan_loop.default_partition)[0].tolist() == [9, 9, 9]


def writes_itself(buffer: torch.Tensor, x: torch.Tensor) -> None:
    buffer.add_(x)


def writes_by_a_view(buffer: torch.Tensor, x: torch.Tensor) -> None:
    buffer[1:].copy_(x[1:])


def writes_by_out(buffer: torch.Tensor, x: torch.Tensor) -> None:
    torch.add(x, 1, out=buffer)


def writes_by_an_index(buffer: torch.Tensor, x: torch.Tensor) -> None:
    buffer[x > 0] = 2.0


def writes_in_a_scan(buffer: torch.Tensor, x: torch.Tensor) -> None:
    scan(lambda carry, y: (carry + buffer.add_(y).sum(), y), x.sum(), x)


def writes_statistics(buffer: torch.Tensor, x: torch.Tensor) -> None:
    torch.nn.functional.batch_norm(x.view(1, 3, 1).expand(1, 3, 2), buffer, torch.ones_like(buffer), training=True)


@pytest.mark.parametrize("is_pure", [False, True], ids=["impure", "pure"])
@pytest.mark.parametrize(
    "write",
    [writes_itself, writes_by_a_view, writes_by_out, writes_by_an_index, writes_in_a_scan, writes_statistics],
    ids=lambda write: write.__name__,
)
def test_a_scan_refuses_to_write_to_a_tensor_from_outside(write: Callable[..., None], is_pure: bool) -> None:
    buffer = torch.zeros(3, device="xla")

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        write(buffer, x)
        return carry + x, carry

    for eagerly in (False, True):
        with eager_mode_context(eagerly):
            for _ in range(2):
                with pytest.raises(RuntimeError, match=r"writes to float32\[3\], which it closes over.* [cC]arry"):
                    scan(body, torch.zeros(3, device="xla"), torch.ones(2, 3, device="xla"), is_fn_pure=is_pure)
            assert buffer.tolist() == [0, 0, 0]
    ran = torch_xla.compile(lambda: scan(body, torch.zeros(3, device="xla"), torch.ones(2, 3, device="xla")))
    with pytest.raises(RuntimeError, match=r"writes to float32\[3\], which it closes over"):
        ran()


def test_a_body_writes_to_its_arguments_and_to_what_it_makes() -> None:
    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        made = torch.zeros_like(x)
        made[0] = carry.sum()
        return carry.add_(made), x.mul_(2)

    init, xs = torch.ones(2, device="xla"), torch.ones(3, 2, device="xla")
    carry, ys = scan(body, init, xs)
    assert carry.tolist() == [15, 1] and ys.tolist() == [[2, 2]] * 3
    assert init.tolist() == [1, 1] and xs.tolist() == [[1, 1]] * 3


def test_a_branch_in_a_body_writes_to_nothing() -> None:
    flag, buffer = torch.tensor(True, device="xla"), torch.zeros(2, 3, device="xla")
    row = buffer[1]
    for branch, words in (
        (lambda x: x.add_(1) + 0, "writes to an operand"),
        (lambda x: row.add_(1) + buffer.sum(0), "writes to a tensor that it closes over"),
    ):
        with pytest.raises(RuntimeError, match=words):
            scan(
                lambda carry, x, branch=branch: (torch.cond(flag, branch, lambda y: y + 0, (carry,)), x),  # type: ignore[misc]
                torch.zeros(3, device="xla"),
                torch.ones(2, 3, device="xla"),
            )


def unused(carry: Any, x: Any, weights: Sequence[torch.Tensor]) -> Any:
    return (carry[0] * weights[0] + x[0], carry[1] + 1, carry[2]), x[0] * 2


def shifted(carry: Any, x: Any, weights: Sequence[torch.Tensor]) -> Any:
    """A first carry that takes several rounds to reach the end."""
    return (carry[1], carry[2], carry[2] * weights[1] + x[1]), carry[0] * x[0].round()


def detached(carry: Any, x: Any, weights: Sequence[torch.Tensor]) -> Any:
    first = carry[0].detach() + (weights[0] * x[0]).detach() * weights[2]
    return (first, carry[1] * x[1], x[0] * 1), weights[1] * carry[2]


def nested(carry: Any, x: Any, weights: Sequence[torch.Tensor]) -> Any:
    def inside(c: torch.Tensor, y: torch.Tensor) -> Any:
        return c * weights[0], y * weights[1] + carry[2]

    run = scan if x[0].device.type == "xla" else unrolled
    last, ys = run(inside, carry[0], torch.stack([x[0], x[1]]))
    return (last, carry[1] * weights[2], carry[2] * 1), ys.sum(0)


@pytest.mark.parametrize("function", [unused, shifted, detached, nested], ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("rounds", "again"), [(1, False), (2, False), (3, False), pytest.param(3, True, marks=pytest.mark.slow)]
)
def test_what_has_no_path_to_a_result_has_no_gradient(function: Callable[..., Any], rounds: int, again: bool) -> None:
    def gradients(device: str) -> list[Any]:
        torch.manual_seed(rounds)
        init, xs, weights = (
            [torch.rand(size).to(device).requires_grad_() for _ in range(count)]
            for size, count in (((2,), 3), ((rounds, 2), 2), ((2,), 3))
        )
        leaves = [*init, *xs, *weights]
        carry: Any = tuple(init)
        if device == "xla":
            carry, ys = scan(lambda carry, x: function(carry, x, weights), carry, tuple(xs))
        else:
            outputs = []
            for x in zip(*xs, strict=True):
                carry, y = function(carry, x, weights)
                outputs.append(y)
            ys = torch.stack(outputs)
        found: list[Any] = []
        for result in (*carry, ys, carry[0] + ys.sum()):
            grads = torch.autograd.grad(result.sum(), leaves, retain_graph=True, create_graph=again, allow_unused=True)
            found += grads
            if again:  # here zeros will do: a slope that is the same everywhere has a gradient in a scan
                total = sum(each.square().sum() for each in (*grads, *leaves) if each is not None)
                found += torch.autograd.grad(total, leaves, retain_graph=True)
        return [None if each is None else each.detach().cpu() for each in found]

    ours, theirs = gradients("xla"), gradients("cpu")
    assert [each is None for each in ours] == [each is None for each in theirs]
    torch.testing.assert_close([e for e in ours if e is not None], [e for e in theirs if e is not None])


def test_a_weight_that_no_layer_uses_keeps_no_gradient() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    layers = torch.nn.ModuleList(Layer() for _ in range(3)).to("xla")
    scan_layers(layers, torch.ones(2, 2, device="xla")).sum().backward()
    given = {name for name, each in layers.named_parameters() if each.grad is not None}
    assert given == {f"{number}.used.{name}" for number in range(3) for name in ("weight", "bias")}


def test_the_directions_of_a_round_are_those_of_the_scan() -> None:
    def body(carry: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        total = carry["total"] * x.sin()
        return {"total": total, "count": carry["count"] + 1}, total.square() + x

    host_xs = torch.randn(3, 4)
    init = {"total": torch.ones(4, device="xla"), "count": torch.zeros((), dtype=torch.int64, device="xla")}
    xs = host_xs.to("xla").requires_grad_()
    first = init["total"].clone().requires_grad_()
    carry, ys = scan(body, {**init, "total": first}, xs)
    (carry["total"].sum() + ys.sum()).backward()

    forward, alias_input, backward = value_and_grad_partitioned(body, init, xs)
    state, kept = init, []
    for x in xs.detach():
        state, (y, activations) = forward(state, x)
        kept.append((y, alias_input(activations, x)))
    torch.testing.assert_close(state["total"].cpu(), carry["total"].detach().cpu())
    assert state["count"].item() == 3
    grads = {"total": torch.ones(4, device="xla"), "count": torch.zeros((), device="xla")}
    by_slice = []
    for y, activations in reversed(kept):
        grads, by_x = backward(grads, (torch.ones_like(y), activations))
        by_slice.insert(0, by_x)
    torch.testing.assert_close(grads["total"].cpu(), first.grad.cpu())
    torch.testing.assert_close(torch.stack(by_slice).cpu(), xs.grad.cpu())
    assert grads["count"].tolist() == 0
