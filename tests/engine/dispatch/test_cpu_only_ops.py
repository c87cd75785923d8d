"""Operators of extensions that have a kernel for the CPU alone run there, in every way of running."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.errors import NoLowering, TransferRefused
from torch_xla.debug import metrics

library = torch.library.Library("extension_of_a_test", "DEF")
OPS: Any = torch.ops.extension_of_a_test


@torch.library.custom_op("extension_of_a_test::scale", mutates_args=(), device_types="cpu")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * factor)  # which only memory of the host allows


scale.register_fake(lambda x, factor: torch.empty_like(x))
scale.register_autograd(
    lambda ctx, grad: (scale(grad, ctx.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("extension_of_a_test::add_one_", mutates_args=("x",), device_types="cpu")
def add_one_(x: torch.Tensor) -> None:
    x.numpy()[...] += 1


@torch.library.custom_op("extension_of_a_test::split_", mutates_args=("sums",), device_types="cpu")
def split_(x: torch.Tensor, sums: list[torch.Tensor]) -> torch.Tensor:
    for each in sums:
        each.add_(x.sum())
    return x * 2


library.define("above(Tensor x, float limit) -> Tensor")
library.impl("above", lambda x, limit: torch.nonzero(x > limit)[:, 0], "CPU")
library.define("pair(Tensor x, Tensor[] others, *, int n=2) -> (Tensor, Tensor[])")
library.impl("pair", lambda x, others, n=2: (x * n, [other + 1 for other in others]), "CPU")
library.define("times_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
library.impl("times_", lambda x, y: x.mul_(y), "CPU")
library.define("optional(Tensor? x, str mode, Tensor y) -> Tensor")
library.impl("optional", lambda x, mode, y: y if x is None else x + y, "CPU")
library.define("made_nowhere(Tensor x) -> Tensor")
library.define("made_later(Tensor x) -> Tensor")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Their first call warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def numbers(device: str, first: float = 0.0) -> torch.Tensor:
    return torch.arange(6.0, device=device).reshape(2, 3) + first


def gradient(device: str) -> torch.Tensor:
    x = numbers(device).requires_grad_()
    (scale(x, 3.0) * numbers(device, 1.0)).sum().backward()
    assert x.grad is not None
    return x.grad


def written(device: str) -> tuple[Any, ...]:
    x = numbers(device)
    before = x._version
    add_one_(x)
    add_one_(x[:, 1:])
    return x, x._version - before


def written_list(device: str) -> tuple[Any, ...]:
    sums = [numbers(device), torch.zeros(2, device=device)]
    return split_(numbers(device), sums), *sums


def aliased(device: str) -> tuple[Any, ...]:
    x = numbers(device)
    result = OPS.times_(x, x + 1)
    return x, result, result is x, OPS.optional(None, "same", x)


PROGRAMS: dict[str, Callable[[str], Any]] = {
    "functional": lambda device: scale(numbers(device) + 1, 2.0) * 2,
    "autograd": gradient,
    "mutates an argument": written,
    "mutates a list": written_list,
    "returns what it wrote": aliased,
    "a size that depends on values": lambda device: OPS.above(numbers(device).flatten(), 2.5) + 1,
    "lists and keywords": lambda device: OPS.pair(numbers(device), [numbers(device, 1.0)] * 2, n=5),
    "vmap": lambda device: torch.vmap(lambda row: scale(row, 2.0))(numbers(device)),
    "no grad": lambda device: torch.no_grad()(scale)(numbers(device).requires_grad_(), 2.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("eager", [False, True])
def test_it_is_what_the_cpu_computes(name: str, eager: bool) -> None:
    torch_xla.experimental.eager_mode(eager)
    try:
        ours = PROGRAMS[name]("xla")
    finally:
        torch_xla.experimental.eager_mode(False)
    assert_same(ours, PROGRAMS[name]("cpu"))


def assert_same(ours: Any, theirs: Any) -> None:
    leaves, others = (torch.utils._pytree.tree_leaves(each) for each in (ours, theirs))
    for a, b in zip(leaves, others, strict=True):
        if isinstance(a, torch.Tensor):
            assert a.device.type == "xla" and a.dtype is b.dtype
            torch.testing.assert_close(a.cpu(), b)
        else:
            assert a == b


WAYS: dict[str, Callable[[Any], Any]] = {
    "replay": lambda function: torch_xla.compile(function, replay=True),
    "openxla": lambda function: torch.compile(function, backend="openxla"),
}


@pytest.mark.parametrize("way", WAYS)
def test_compiled_and_replayed_calls_compute_on_the_cpu_each_time(way: str) -> None:
    outcomes = []
    for device in ("xla", "cpu"):
        state = numbers(device)

        def step(x: torch.Tensor, state: torch.Tensor = state) -> torch.Tensor:
            add_one_(state)
            return scale(x + state, 2.0) * state

        function = WAYS[way](step) if device == "xla" else step
        outcomes.append(([function(numbers(device, float(i))) for i in range(4)], state))
    assert_same(*outcomes)


def test_a_compiled_function_has_the_gradient() -> None:
    x = numbers("xla").requires_grad_()
    function = torch.compile(lambda x: scale(x + 1, 2.0) * 2, backend="openxla", fullgraph=True)
    function(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad.cpu(), torch.full((2, 3), 4.0))


def test_it_is_counted_and_warned_about_by_its_name() -> None:
    torch.library.define("extension_of_a_test::counted", "(Tensor x) -> Tensor")
    torch.library.impl("extension_of_a_test::counted", "cpu", lambda x: x + 1)
    name = "extension_of_a_test::counted"
    assert name not in metrics.executed_fallback_ops()
    with pytest.warns(UserWarning, match=f"{name} has no XLA lowering here and runs on the CPU.*test_cpu_only_ops.py"):
        OPS.counted(numbers("xla"))
    OPS.counted(numbers("xla"))
    assert name in metrics.executed_fallback_ops() and metrics.counter_value(name) == 2


def test_where_nothing_may_travel_it_is_refused_by_name() -> None:
    x = numbers("xla")
    with torch_xla.debug.no_transfer(), pytest.raises(TransferRefused, match="extension_of_a_test::scale"):
        scale(x, 2.0)


def test_without_a_kernel_for_the_cpu_it_is_refused_until_there_is_one() -> None:
    with pytest.raises(
        NoLowering, match="extension_of_a_test::made_nowhere has no kernel for the xla device, and none"
    ):
        OPS.made_nowhere(numbers("xla"))
    with pytest.raises(NotImplementedError, match="extension_of_a_test::made_later"):
        OPS.made_later(numbers("xla"))
    library.impl("made_later", lambda x: x + 1, "CPU")
    assert_same(OPS.made_later(numbers("xla")), numbers("cpu", 1.0))


def test_what_an_extension_has_for_this_device_is_preferred() -> None:
    library.define("ours(Tensor x) -> Tensor")
    library.impl("ours", lambda x: x + 1, "CPU")
    library.impl("ours", lambda x: x + 2, "PrivateUse1")
    assert_same(OPS.ours(numbers("xla")), numbers("cpu", 2.0))
    assert "extension_of_a_test::ours" not in metrics.executed_fallback_ops()


def test_quasirandom_numbers_are_those_of_the_cpu() -> None:
    found = []
    for device in ("cpu", "xla"):
        state = torch.zeros(2, 30, dtype=torch.int64, device=device)
        torch.ops.aten._sobol_engine_initialize_state_(state, 2)
        scramble = torch.eye(30, dtype=torch.int64, device=device).expand(2, 30, 30).contiguous()
        torch.ops.aten._sobol_engine_scramble_(state, scramble, 2)
        first = torch.zeros(2, dtype=torch.int64, device=device)
        drawn, after = torch.ops.aten._sobol_engine_draw(first, 4, state, 2, 0, torch.float32)
        torch.ops.aten._sobol_engine_ff_(after, 3, state, 2, 4)
        found.append([each.cpu() for each in (state, drawn, after)])
    assert found[0][1].unique().numel() > 1
    torch.testing.assert_close(found[1], found[0])
