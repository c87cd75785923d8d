"""Values that operators cannot take: raised at the next wait, with operator, value, place and line."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.diagnostics.values import bad_value_checks
from torch_xla._engine.dispatch import recording_kernel
from torch_xla._engine.dispatch.checks import device_values
from torch_xla._engine.ir import side_effects
from torch_xla._engine.lowering.machinery.device_value_checks import all_checks
from torch_xla._engine.step import in_flight
from torch_xla.debug import check_values
from torch_xla.experimental import eager

Make = Callable[..., torch.Tensor]
NAN, INF = float("nan"), float("inf")


def on(device: str) -> Make:
    """Makes tensors that are computed on a device: its host does not know the numbers."""

    def make(*numbers: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        made = torch.tensor(numbers, dtype=dtype).to(device)
        return made.clone() if device == "cpu" else (made.logical_or(made) if made.dtype is torch.bool else made + 0)

    return make


def x(t: Make) -> torch.Tensor:
    return t([0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 1.0, 0.0, 0.1])


# The call, and its error: the argument, the value, its index.
BAD: dict[str, tuple[Callable[[Make], Any], str]] = {
    "cross_entropy": (lambda t: F.cross_entropy(x(t), t(1, 9, 0)), "`target` .* It is 9 at [1]"),
    "nll_loss": (lambda t: F.nll_loss(x(t), t(1, -1, 0)), "from 0 to 3, or -100 to be ignored. It is -1 at [1]"),
    "nll_loss2d": (lambda t: F.nll_loss(x(t)[None, :, None], t([[0, 1, 2, 3]])), "`target` .* It is 3 at [0, 0, 3]"),
    "embedding": (lambda t: F.embedding(t([0, 5]), x(t)), "`indices` must be from 0 to 2. It is 5 at [0, 1]"),
    "embedding, negative": (lambda t: F.embedding(t(-1), x(t)), "It is -1 at [0]"),
    "embedding_bag": (lambda t: F.embedding_bag(t(1, 5), x(t), t(0)), "`indices` .* It is 5 at [1]"),
    "embedding_bag, begins": (lambda t: F.embedding_bag(t(1, 2), x(t), t(1)), "`offsets` must begin with 0. It is 1"),
    "embedding_bag, ends": (lambda t: F.embedding_bag(t(1, 2), x(t), t(0, 5)), "`offsets` must be from.*It is 5"),
    "gather": (lambda t: x(t).gather(0, t([7])), "`index` must be from 0 to 2. It is 7 at [0, 0]"),
    "gather, negative": (lambda t: x(t).gather(0, t([-1])), "It is -1 at [0, 0]"),
    "scatter": (lambda t: x(t).scatter(0, t([0, 7]), x(t)), "scatter .* It is 7 at [0, 1]"),
    "scatter a number": (lambda t: x(t).scatter(1, t([7]), 2.0), "must be from 0 to 3. It is 7"),
    "scatter_": (lambda t: x(t).scatter_(0, t([7]), x(t), reduce="add"), "It is 7"),
    "scatter_add_": (lambda t: x(t).scatter_add_(0, t([7]), x(t)), "It is 7"),
    "scatter_reduce": (lambda t: x(t).scatter_reduce(0, t([7]), x(t), "amax"), "It is 7"),
    "index_select": (lambda t: x(t).index_select(0, t(0, 3)), "must be from 0 to 2. It is 3 at [1]"),
    "index_add_": (lambda t: x(t).index_add_(0, t(7), x(t)[:1]), "It is 7"),
    "index_copy": (lambda t: x(t).index_copy(0, t(-1), x(t)[:1]), "It is -1"),
    "index_fill_": (lambda t: x(t).index_fill_(0, t(-4), 1.0), "must be from -3 to 2. It is -4"),
    "index_reduce": (lambda t: x(t).index_reduce(0, t(7), x(t)[:1], "amax"), "It is 7"),
    "index": (lambda t: x(t)[t(0, 3)], "`indices[0]` must be from -3 to 2. It is 3 at [1]"),
    "index of the second": (lambda t: x(t)[:, t(0, -5)], "`indices[1]` must be from -4 to 3. It is -5 at [1]"),
    "index_put_": (lambda t: x(t).index_put_((t(7),), x(t)[0]), "It is 7"),
    "setitem": (lambda t: x(t).__setitem__(t(-9), 1.0), "It is -9"),
    "take": (lambda t: x(t).take(t(12)), "must be from -12 to 11. It is 12"),
    "put": (lambda t: x(t).put(t(-13), t(1.0)), "It is -13"),
    "masked_scatter": (lambda t: x(t).masked_scatter(x(t) > 0.55, t(1.0, 2.0)), "true 2 times at most.* It is 5"),
    "floor division": (lambda t: t(1, 2) // t(3, 0), "`other` must not be 0.* It is 0 at [1]"),
    "floor division in place": (lambda t: t(1, 2).floor_divide_(t(3, 0)), "It is 0 at [1]"),
    "division, truncated": (lambda t: torch.div(t(1, 2), t(0, 1), rounding_mode="trunc"), "It is 0 at [0]"),
    "remainder": (lambda t: t(1, 2) % t(1, 0), "It is 0 at [1]"),
    "remainder of a number": (lambda t: torch.remainder(7, t(1, 0)), "It is 0 at [1]"),
    "fmod": (lambda t: torch.fmod(t(1, 2), t(1, 0)), "It is 0 at [1]"),
    "a number beyond": (
        lambda t: t(1, 2, dtype=torch.int8).to(torch.int8).masked_fill(t(True, False), t(1000)[0]),
        "a number that int8 holds. It is 1000",
    ),
    "a number of NaN": (lambda t: t(1, 2).masked_fill(t(True, False), t(NAN)[0]), "int64 holds. It is nan"),
    "masked_scatter_backward": (
        lambda t: torch.ops.aten.masked_scatter_backward(t(1.0, 2.0), t(True, True), [1]),
        "true 1 times at most.* It is 2",
    ),
    "bernoulli": (lambda t: torch.bernoulli(t(0.5, 1.5)), "must be from 0 to 1. It is 1.5 at [1]"),
    "bernoulli of NaN": (lambda t: torch.bernoulli(t(0.5, NAN)), "It is nan at [1]"),
    "bernoulli_": (lambda t: x(t).bernoulli_(t(0.5, 0.5, 0.5, -0.5)), "`p` .* It is -0.5 at [3]"),
    "multinomial": (lambda t: torch.multinomial(t(1.0, -1.0), 1), "finite and not negative. It is -1 at [1]"),
    "multinomial of nothing": (lambda t: torch.multinomial(t([1.0, 0.0], [0.0, 0.0]), 1), "a sum .* It is 0 at [1]"),
    "poisson": (lambda t: torch.poisson(t(1.0, -2.0)), "must not be negative. It is -2 at [1]"),
    "normal": (lambda t: torch.normal(t(0.0), t(-1.0)), "`std` must not be negative. It is -1"),
    "histc": (lambda t: torch.histc(t(0.0, INF)), "must be finite.* It is inf at [1]"),
    "quantile": (lambda t: torch.quantile(t(1.0, 2.0), t(0.5, 1.5)), "`q` must be from 0 to 1. It is 1.5 at [1]"),
    "quantile of NaN": (lambda t: torch.quantile(t(1.0, 2.0), t(NAN)[0]), "It is nan at []"),
    "nanquantile": (lambda t: torch.nanquantile(t([1.0, NAN]), t(-0.5), 1), "nanquantile .* It is -0.5 at [0]"),
    "binary_cross_entropy": (lambda t: F.binary_cross_entropy(t(0.5, 1.5), t(1.0, 1.0)), "`input` .* It is 1.5 at [1]"),
    "its targets": (lambda t: F.binary_cross_entropy(t(0.5), t(7.0)), "`target` must be from 0 to 1. It is 7"),
    "multi_margin_loss": (lambda t: F.multi_margin_loss(x(t), t(1, 4, 0)), "It is 4 at [1]"),
    "multilabel_margin_loss": (lambda t: F.multilabel_margin_loss(t(1.0, 2.0), t(-2, 0)), "It is -2 at [0]"),
    "max_unpool2d": (lambda t: F.max_unpool2d(x(t)[None, None], t([[[16] * 4] * 3]), 1), "It is 16 at [0, 0, 0, 0]"),
    "searchsorted": (lambda t: torch.searchsorted(t(1.0, 2.0), t(1.0), sorter=t(1, 2)), "`sorter` .* It is 2 at [1]"),
    "lu_unpack": (lambda t: torch.lu_unpack(x(t)[:, :3], t(1, 2, 4).int()), "`LU_pivots` must be from 1 to 3. It is 4"),
    "segment_reduce": (lambda t: torch.segment_reduce(t(1.0, 2.0), "sum", lengths=t(1, 4)), "have the sum 2.* It is 5"),
    "one_hot": (lambda t: F.one_hot(t(0, 3), 3), "must be from 0 to 2. It is 3"),
    "assertion": (lambda t: torch._assert_async(t(0.0).sum()), "Expected Tensor with single nonzero value"),
}  # fmt: skip


def test_offsets_that_fall_are_refused_although_the_cpu_reads_what_is_not_there() -> None:
    t = on("xla")
    with pytest.raises(RuntimeError, match="`offsets` .* before. It is 1"), check_values():
        F.embedding_bag(t(1, 2, 1), x(t), t(0, 2, 1) + 0)


@contextmanager
def nothing_left() -> Iterator[None]:
    yield
    assert not waiting()
    assert not device_values.are_on()


def waiting() -> int:
    """Return the number of reports that were not read yet."""
    return sum(len(flight.reports) for flight in in_flight.by_target.values())


@pytest.mark.parametrize("name", list(BAD))
def test_what_the_cpu_refuses_is_refused_with_value_place_and_line(name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        call(on("cpu"))
    with nothing_left(), pytest.raises(Exception) as ours, check_values():  # noqa: PT011
        made = call(on("xla"))  # noqa: F841
        torch_xla.sync()
    kind = RuntimeError if name == "one_hot" else type(theirs.value)
    assert type(ours.value) is kind, ours.value
    assert re.search(words.replace("[", r"\[").replace("]", r"\]"), str(ours.value)), ours.value
    assert "test_device_values.py:" in str(ours.value)


# PyTorch warns of these calls once in a process.
@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter", "ignore:index_reduce.. is in beta")
def test_every_check_is_tried() -> None:
    tried = set()
    recording_kernel.look_at_calls(lambda plan, call: tried.add(plan.op[0] if isinstance(plan.op, tuple) else plan.op))
    try:
        for call in [call for name, (call, _) in BAD.items() if name != "assertion"]:
            call(on("xla"))
    finally:
        recording_kernel.look_at_calls(None)
    others = {str(op).removeprefix("aten.") for op in set(all_checks()) - tried}
    assert others <= {  # other overloads of the tested operators, and operators that only traced programs call
        "_embedding_bag.default", "_embedding_bag_forward_only.default", "embedding_renorm.default",
        "_unsafe_index.Tensor", "_unsafe_index_put.default", "_index_put_impl.default", "floor_divide.Scalar",
        "remainder.Scalar", "fmod.Scalar", "div.Scalar_mode", "normal.float_Tensor", "max_unpool3d.default",
        "repeat_interleave.Tensor", "searchsorted.Scalar", "scatter.value_reduce", "index_put.default",
        "index_fill.int_Tensor", "scatter.src", "scatter.reduce",
        "quantile.default", "nanquantile.default",  # composed: looked at before they are called
        "_ctc_loss.default",  # the CPU reads beyond its memory for it: tried below
    }  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
def test_labels_of_no_class_are_refused_and_padding_is_not_looked_at(padded: bool) -> None:
    t = on("xla")
    scores = torch.zeros(6, 2, 4).log_softmax(-1)
    good = ([1, 2, 99], [3, 1, -7]) if padded else (1, 2, 3, 1)
    bad = ([1, 2, 99], [3, 4, -7]) if padded else (1, 2, 3, 4)
    lengths = [6, 6], [2, 2]
    expected = F.ctc_loss(scores, torch.tensor([[1, 2], [3, 1]]), *lengths)
    with nothing_left(), check_values():
        torch.testing.assert_close(F.ctc_loss(scores.to("xla"), t(*good), *lengths).cpu(), expected)
    where = r"\[1, 1\]" if padded else r"\[3\]"
    with nothing_left(), pytest.raises(IndexError, match=f"`targets` must be from 0 to 3. It is 4 at {where}"):
        with check_values():
            loss = F.ctc_loss(scores.to("xla"), t(*bad), *lengths)  # noqa: F841
            torch_xla.sync()


GOOD: dict[str, Callable[[Make], Any]] = {
    "an ignored target": lambda t: F.cross_entropy(x(t), t(-100, 3, 0)),
    "negative indices": lambda t: x(t)[t(-3), t(-4)],
    "a mask": lambda t: x(t).masked_fill(x(t) > 0.5, 0.0)[x(t) > 0.1],
    "a mask that is written": lambda t: x(t).__setitem__(x(t) > 0.85, t(7.0, 8.0)),
    "floats by zero": lambda t: (t(1.0) // t(0.0), t(1) / t(0), t(1.0) % t(0)),
    "no indices": lambda t: F.embedding(t(dtype=torch.int64), x(t)),
    "nothing to look up in": lambda t: torch.empty(0, 3, device=x(t).device)[t(dtype=torch.int64)],
    "a range that is given": lambda t: torch.histc(t(0.5, NAN), 4, 0, 1),
    "bags": lambda t: F.embedding_bag(t(1, 2, 0), x(t), t(0, 0, 3)),
    "no label": lambda t: F.multilabel_margin_loss(t(1.0, 2.0), t(0, -1)),
    "an assertion": lambda t: torch._assert_async(t(2)),
}


@pytest.mark.parametrize("name", list(GOOD))
def test_what_the_cpu_takes_is_taken(name: str) -> None:
    GOOD[name](on("cpu"))
    with nothing_left(), check_values():
        GOOD[name](on("xla"))


def test_without_asking_nothing_is_recorded_besides() -> None:
    F.embedding(on("xla")(5), x(on("xla")))
    torch_xla.sync()
    assert not waiting()


def test_it_is_raised_once_by_the_wait_and_the_first_is_told() -> None:
    t = on("xla")
    table, divisor = x(t), t(0, 1)
    device_values.ask()
    try:
        rows = F.embedding(t(7), table)
        quotient = t(4, 6) // divisor
        torch_xla.sync()
        assert waiting() == 2
        with pytest.raises(IndexError, match="It is 7"):
            torch_xla.sync(wait=True)
        torch_xla.sync(wait=True)
        assert rows.shape == (1, 4) and quotient.tolist()[1] == 6
    finally:
        device_values.ask_no_more()
    assert not waiting()


def test_a_value_that_is_read_brings_the_reports_before_it() -> None:
    t = on("xla")
    torch._assert_async(t(0), "not this")
    total = t(1, 2).sum()
    with pytest.raises(RuntimeError, match="^not this\n  asserted at .*test_device_values.py:"):
        total.item()
    assert total.item() == 3


def test_the_message_of_an_assertion_is_no_part_of_the_program() -> None:
    t = on("xla")
    compiled = []
    for number in range(5):
        before = met.counter_value("UncachedCompile") or 0
        torch._assert_async(t(3) + 0 * number, f"message {number}")
        torch_xla.sync()
        compiled.append((met.counter_value("UncachedCompile") or 0) - before)
    assert compiled[2:] == [0, 0, 0]
    for number in (5, 6):
        torch._assert_async(t(3) - 3, f"message {number}")
        with pytest.raises(RuntimeError, match=f"^message {number}\n"):
            torch_xla.sync(wait=True)


def test_messages_that_nobody_used_for_long_leave() -> None:
    first = side_effects.number_of("the first")
    assert side_effects.number_of("the first") == first and side_effects.message_of(first) == "the first"
    for number in range(side_effects._MOST_MESSAGES):
        side_effects.number_of(f"one of many, {number}")
    assert "left memory" in side_effects.message_of(first)
    assert len(side_effects._messages) == len(side_effects._numbers) == side_effects._MOST_MESSAGES


@pytest.mark.parametrize("mode", ["recorded", "eager", "region", "replay", "dynamo"])
def test_an_assertion_is_kept_in_every_mode_and_raises_once(mode: str) -> None:
    def step(v: torch.Tensor) -> torch.Tensor:
        torch._assert_async((v > 0).all(), "must be positive")
        return v * 2

    run = {
        "region": lambda: torch_xla.compile(step),
        "replay": lambda: torch_xla.compile(step, replay=True),
        "dynamo": lambda: torch.compile(step, backend="openxla"),
    }.get(mode, lambda: step)()
    if mode == "eager":
        eager.eager_mode(True)
    try:
        values = [torch.full((3,), float(n)).to("xla") for n in (1, 2, 3, 4, -1, 6, 7)]
        failed = []
        for number, value in enumerate(values):
            try:
                result = run(value)
                torch_xla.sync(wait=True)
                assert result.tolist() == [2.0 * value[0].item()] * 3
            except RuntimeError as error:
                assert "must be positive" in str(error)
                failed.append(number)
        assert failed == [4]
    finally:
        if mode == "eager":
            eager.eager_mode(False)
    assert not waiting()


def test_operators_of_a_compiled_graph_are_looked_at() -> None:
    t = on("xla")
    table = x(t).requires_grad_()

    def step(indices: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.embedding(indices, table) * 2.0, target)

    compiled = torch.compile(step, backend="openxla")
    wanted = compiled(t(1, 2), t(0, 3))
    wanted.backward()
    gradient, table.grad = table.grad, None
    by_operator = met.counter_value("DynamoGraphByOperator") or 0
    with nothing_left(), check_values():
        found = compiled(t(1, 2), t(0, 3))
        found.backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(table.grad, gradient)
    assert met.counter_value("DynamoGraphByOperator") == by_operator + 2  # forward and backward
    for indices, target, words in ((t(9, 0), t(0, 1), "It is 9 at [0]"), (t(0, 1), t(0, 7), "It is 7 at [1]")):
        with nothing_left(), pytest.raises(IndexError, match=re.escape(words)) as raised, check_values():
            compiled(indices, target)
        assert "in step: " in str(raised.value)
    compiled(t(9, 0), t(0, 1)).item()  # outside the block it is one operation again, and nothing is looked at
    assert met.counter_value("DynamoGraphByOperator") == by_operator + 4


def test_a_compiled_graph_that_writes_is_recorded_by_operator() -> None:
    def step(table: torch.Tensor, indices: torch.Tensor, scale: float) -> torch.Tensor:
        rows = table[indices] * scale
        table.add_(1.0)
        return rows.t()

    t = on("xla")
    compiled = torch.compile(step, backend="openxla")
    table, twin = x(t), x(on("cpu"))
    for scale in (2.0, 3.0, 4.0):
        with nothing_left(), check_values():
            rows = compiled(table, t(0, -1), scale)
        torch.testing.assert_close(rows.cpu(), step(twin, torch.tensor([0, -1]), scale))
        torch.testing.assert_close(table.cpu(), twin)
    with nothing_left(), pytest.raises(IndexError, match="It is -4"), check_values():
        compiled(table, t(0, -4), 4.0)


def test_assertions_that_are_known_to_fail_raise_at_once() -> None:
    with pytest.raises(RuntimeError, match="zero"):
        torch._assert_async(torch.tensor(0, device="xla"))
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        torch._assert_async(torch.ones(2, device="xla"))
    with pytest.raises(RuntimeError, match="no"):
        torch._assert_scalar(0, "no")
    token = torch.empty(0, device="xla")
    assert torch.ops.aten._functional_assert_async.msg(on("xla")(1), "m", token).shape == (0,)
    torch_xla.sync(wait=True)


def test_a_setting_checks_the_whole_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_CHECK_VALUES", "1")
    bad_value_checks.apply_settings()
    try:
        with pytest.raises(IndexError):
            F.embedding(on("xla")(7), x(on("xla"))).tolist()
    finally:
        monkeypatch.delenv("XLA_CHECK_VALUES")
        bad_value_checks.apply_settings()
    assert not device_values.are_on()
