"""Effects happen once each, in the order in which they were recorded, whatever is read in between and whoever holds
their results."""

import gc
import queue
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_model as xm
from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.compile.stages import stage_cuts
from torch_xla._engine.errors import ExecutionError
from torch_xla.experimental.scan import scan


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    torch_xla.sync(wait=True)
    yield
    torch_xla.sync(wait=True)


class Calls:
    """Callbacks, by the numbers they were given."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def note(self, array: jax.Array) -> None:
        """Keeps a number that a program has sent."""
        self.seen.append(float(array))

    def quiet(self, x: jax.Array) -> jax.Array:
        """A function that reports its argument and returns something else."""
        jax.debug.callback(self.note, x.sum())
        return x + 1


def test_a_callback_is_called_though_nobody_holds_the_result() -> None:
    calls = Calls()
    x = torch.ones(2, device="xla")
    xb.call_jax(calls.quiet, (x,))
    assert not calls.seen
    torch_xla.sync(wait=True)
    assert calls.seen == [2]
    torch_xla.sync(wait=True)
    assert calls.seen == [2]


def test_an_interrupt_in_a_callback_is_an_interrupt_of_the_step_which_can_be_tried_again() -> None:
    waiting = [KeyboardInterrupt]

    def interrupted(_: jax.Array) -> None:
        if waiting:
            raise waiting.pop()

    def told(x: jax.Array) -> jax.Array:
        jax.debug.callback(interrupted, x.sum())
        return x + 1

    x = xb.call_jax(told, (torch.ones(2, device="xla"),))
    with pytest.raises(KeyboardInterrupt):
        torch_xla.sync(wait=True)
    assert x.tolist() == [2, 2]


def test_callbacks_keep_the_order_of_the_recording_and_those_of_one_function_too() -> None:
    calls = Calls()

    def twice(x: jax.Array) -> jax.Array:
        jax.debug.callback(calls.note, x)
        total, _ = jax.lax.scan(lambda c, v: (c + v, jax.debug.callback(calls.note, v)), x, jax.numpy.arange(3.0) + x)
        jax.debug.callback(calls.note, total)
        return total

    values = [torch.tensor(float(n), device="xla") for n in (10, 100, 1000)]
    for value in values:
        xb.call_jax(twice, (value,))
    torch_xla.sync(wait=True)
    assert calls.seen == [v for n in (10.0, 100.0, 1000.0) for v in (n, n, n + 1, n + 2, 4 * n + 3)]


def test_a_read_of_something_else_leaves_the_effect_for_the_sync() -> None:
    calls = Calls()
    x = torch.ones(2, device="xla")
    other = x * 3
    xb.call_jax(calls.quiet, (x,))
    assert other.tolist() == [3, 3] and not calls.seen
    torch_xla.sync(wait=True)
    assert calls.seen == [2]


def test_a_read_of_one_effect_does_those_before_it_and_no_later_one() -> None:
    calls = Calls()
    first, second, third = (torch.full((2,), float(n), device="xla") for n in (1, 2, 3))
    xb.call_jax(calls.quiet, (first,))
    made = xb.call_jax(calls.quiet, (second,))
    xb.call_jax(calls.quiet, (third,))
    assert made.tolist() == [3, 3]
    xm.wait_device_ops()
    assert calls.seen == [2, 4]
    torch_xla.sync(wait=True)
    assert calls.seen == [2, 4, 6]


def test_the_result_of_an_effect_that_nobody_holds_is_kept_for_what_reads_it_later() -> None:
    calls = Calls()
    made = xb.call_jax(calls.quiet, (torch.ones(2, device="xla"),))
    doubled, tripled = made * 2, made * 3
    del made
    assert doubled.tolist() == [4, 4]
    assert tripled.tolist() == [6, 6]
    torch_xla.sync(wait=True)
    assert calls.seen == [2]


def test_a_gradient_does_not_call_again() -> None:
    calls = Calls()

    def loss(x: jax.Array) -> jax.Array:
        jax.debug.callback(calls.note, x.sum())
        return jax.jit(lambda y: (jax.debug.callback(calls.note, y.sum() * 10), y * y)[1])(x).sum()

    x = torch.tensor([1.0, 2.0], device="xla", requires_grad=True)
    xb.call_jax(loss, (x,)).backward()
    torch_xla.sync(wait=True)
    assert x.grad is not None and x.grad.tolist() == [2, 4]
    assert calls.seen == [3, 30]


def test_two_functions_that_differ_in_what_they_call_are_two() -> None:
    one, other = Calls(), Calls()
    x = torch.ones(2, device="xla")
    for calls in (one, other, one):
        xb.call_jax(calls.quiet, (x,))
    torch_xla.sync(wait=True)
    assert (one.seen, other.seen) == ([2, 2], [2])


def test_an_operator_of_ones_own_calls_the_host() -> None:
    calls = Calls()
    library = torch.library.Library("effects_of_tests", "FRAGMENT")
    library.define("report(Tensor x) -> Tensor")
    library.impl("report", lambda x: xb.call_jax(calls.quiet, (x,)), "PrivateUse1")
    x = torch.ones(2, device="xla")
    try:
        torch.ops.effects_of_tests.report(x)
        assert torch.ops.effects_of_tests.report(x + 1).tolist() == [3, 3]
        torch_xla.sync(wait=True)
        assert calls.seen == [2, 4]
    finally:
        delattr(torch.ops, "effects_of_tests")  # before PyTorch 2.13 an export stumbles over operators that are gone


def test_a_compiled_step_calls_once_a_step() -> None:
    sent: queue.SimpleQueue[float] = queue.SimpleQueue()  # which a replay does not look into, as it does into a list
    state = torch.zeros(2, device="xla")

    def report(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda array: sent.put(float(array)), x.sum())
        return x

    def step(x: torch.Tensor) -> None:
        state.add_(x)
        xb.call_jax(report, (state,))

    compiled = torch_xla.compile(step, replay=True)
    for _ in range(8):
        compiled(torch.ones(2, device="xla"))
    torch_xla.sync(wait=True)
    assert [sent.get_nowait() for _ in range(8)] == [2.0 * n for n in range(1, 9)] and sent.empty()
    assert compiled.is_replayed


class Counting:
    """A program that calls a function on the host, which changes a tensor of its own."""

    def __init__(self, act: Callable[["Counting"], object]) -> None:
        self.counted = torch.zeros(3).to("xla")
        self.x = torch.ones(4).to("xla")
        self.result: torch.Tensor | None = None
        self._act = act

    def count(self, _: jax.Array) -> None:
        """Counts, and does what the test wants."""
        self.counted.add_(1)
        self._act(self)

    def called(self, x: jax.Array) -> jax.Array:
        """The function of the program."""
        jax.debug.callback(self.count, x)
        return x * 2

    def step(self) -> torch.Tensor:
        """The program. Tensors of the previous step are not seen any more."""
        self.result = None
        self.result = xb.call_jax(self.called, (self.x,))
        return self.result


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", ["records", "syncs", "reads"])
def test_what_a_callback_records_belongs_to_the_next_step(way: str, act: str) -> None:
    read: list[float] = []
    acts: dict[str, Callable[[Counting], object]] = {
        "records": lambda _: None,
        "syncs": lambda _: torch_xla.sync(),
        "reads": lambda program: read.append(program.counted[0].item()),
    }
    program = Counting(acts[act])
    torch_xla.sync(wait=True)
    with made_to_run(way, program.step) as step:
        for number in range(1, 6):
            result = step()
            torch_xla.sync(wait=True)
            assert result.tolist() == [2] * 4
            assert program.counted.tolist() == [number] * 3
    assert program.x.tolist() == [1] * 4 and read == ([1, 2, 3, 4, 5] if act == "reads" else [])


@pytest.mark.parametrize("use", [lambda tensor: tensor.add_(1), lambda tensor: tensor.tolist()])
def test_a_callback_that_uses_what_its_program_computes_is_told_what_to_do(use: Callable[[Any], object]) -> None:
    program = Counting(lambda it: use(it.result))
    program.step()
    with pytest.raises(RuntimeError, match="a running program computes.*use the tensor after the step"):
        torch_xla.sync(wait=True)
    with pytest.raises(RuntimeError, match="use the tensor after the step"):
        program.result.tolist()  # type: ignore[union-attr]
    assert program.x.tolist() == [1] * 4
    assert program.counted.tolist() == [1] * 3, "what the function recorded before is kept"


@pytest.mark.parametrize("act", [lambda _: None, lambda _: torch_xla.sync(), lambda program: program.counted.tolist()])
def test_a_callback_of_a_part_of_a_step_leaves_the_rest_of_it(act: Callable[[Counting], object]) -> None:
    program = Counting(act)
    other = torch.ones(2).to("xla")
    result = program.step()
    held = other + 1
    later = result + 1
    assert result.tolist() == [2] * 4  # runs the call alone
    assert program.counted.tolist() == [1] * 3
    other.add_(5)
    torch_xla.sync(wait=True)
    assert (held.tolist(), later.tolist(), other.tolist()) == ([2, 2], [3] * 4, [6, 6])
    assert program.counted.tolist() == [1] * 3


def test_in_eager_mode_an_effect_happens_when_it_is_called() -> None:
    calls = Calls()
    torch_xla.experimental.eager_mode(True)
    try:
        x = torch.ones(2, device="xla")
        for _ in range(3):
            x = xb.call_jax(calls.quiet, (x,))
            xm.wait_device_ops()
            assert calls.seen[-1] == x.sum().item() - 2
    finally:
        torch_xla.experimental.eager_mode(False)
    torch_xla.sync(wait=True)
    assert calls.seen == [2, 4, 6]


@pytest.mark.parametrize("is_pure", [True, False])
def test_what_fails_on_the_host_fails_once_and_is_not_called_again(
    is_pure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[float] = []

    def refuse(array: jax.Array) -> jax.Array:
        called.append(float(array.sum()))
        raise ValueError("nobody wants this")

    def refused(x: jax.Array) -> jax.Array:
        if is_pure:
            return jax.pure_callback(refuse, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        jax.debug.callback(refuse, x)
        return x + 1

    monkeypatch.setattr(stage_cuts, "LEAST_BYTES_ON_HOST", 1)
    monkeypatch.setenv("XLA_STAGE_OPERATIONS", "20")
    x, weight, changed = (torch.ones(2).to("xla") for _ in range(3))
    torch_xla.sync()
    later = made = xb.call_jax(refused, (x,))
    for _ in range(30):
        later = later.tanh() * 2
    weight.add_(1)
    changed.add_(later)
    with pytest.raises(ExecutionError, match="(?s)nobody wants this.*what needs its result is lost") as failed:
        torch_xla.sync(wait=True)
    assert "called by" in failed.value.__notes__[0]
    torch_xla.sync(wait=True)
    for use in (made.tolist, later.tolist, lambda: later + 1):
        with pytest.raises(RuntimeError, match="(?s)never computed.*nobody wants this"):
            use()
    # Writes behind the call do not happen, as where the call itself raises.
    assert weight.tolist() == changed.tolist() == x.tolist() == [1, 1] and called == [2]


def test_what_fails_on_the_host_in_a_loop_takes_nothing_along(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[float] = []

    def refuse(array: jax.Array) -> jax.Array:
        called.append(float(array.sum()))
        raise ValueError("nobody wants this")

    def refused(x: jax.Array) -> jax.Array:
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    monkeypatch.setattr(stage_cuts, "LEAST_BYTES_ON_HOST", 1)
    monkeypatch.setenv("XLA_STAGE_OPERATIONS", "8")
    weight = torch.ones(2, 2).to("xla")
    torch_xla.sync()
    for _ in range(10):
        weight.mul_(2).sub_(1)
    start, xs = weight.sum(0), torch.ones(2, 2, device="xla")
    carry, _ = scan(lambda carry, x: (carry + xb.call_jax(refused, (x,)), x), start, xs)
    other = xb.call_jax(lambda x: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x), (xs,))
    with pytest.raises(ExecutionError, match="(?s)nobody wants this.*what needs its result is lost") as failed:
        torch_xla.sync(wait=True)
    assert all(each in failed.value.__notes__[0] for each in ("called by", "or by")), "which of both, XLA does not say"
    torch_xla.sync(wait=True)
    for use in (carry.tolist, other.tolist):
        with pytest.raises(RuntimeError, match="(?s)never computed.*nobody wants this"):
            use()
    assert weight.tolist() == [[1, 1], [1, 1]] and called == [2]


ACTIONS = st.lists(st.sampled_from(("effect", "held", "read", "read effect", "pure", "drop", "sync", "collect")))


@settings(max_examples=15, deadline=None)
@given(ACTIONS)
def test_each_effect_happens_once_and_in_order(actions: list[str]) -> None:
    calls = Calls()
    held: list[torch.Tensor] = []
    effects: list[tuple[int, torch.Tensor]] = []
    count = 0
    x = torch.zeros((), device="xla")
    torch_xla.sync()
    for action in actions:
        if action in ("effect", "held"):
            count += 1
            made = xb.call_jax(calls.quiet, (x + count,))
            if action == "held":
                effects.append((count, made))
        elif action == "pure":
            held.append((effects[-1][1] if effects else x) * 2)
        elif action == "read" and held:
            held[-1].item()
        elif action == "read effect" and effects:
            number, made = effects[0]
            assert made.item() == number + 1
            xm.wait_device_ops()
            assert calls.seen[:number] == list(range(1, number + 1))
        elif action == "drop":
            held.clear()
            effects[1:] = []
        elif action == "sync":
            torch_xla.sync(wait=True)
            assert len(calls.seen) == count
        elif action == "collect":
            gc.collect()
    torch_xla.sync(wait=True)
    assert calls.seen == list(range(1, count + 1))
