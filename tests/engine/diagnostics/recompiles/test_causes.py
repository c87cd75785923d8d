"""Each reason for a compilation is reported after making the mistake that causes it."""

import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
import torch_xla.debug as debug
from tests.support.pending import prolonged
from torch_xla._engine.compile import changing_numbers
from torch_xla._engine.diagnostics.recompiles import causes, differences
from torch_xla._engine.diagnostics.recompiles.differences import Kind
from torch_xla._engine.diagnostics.report import history
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import schedule
from torch_xla._engine.tensor.storage import value_of

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def a_fresh_history() -> Iterator[None]:
    torch_xla.sync()
    schedule.clear_schedules()
    changing_numbers._seen_numbers.clear()
    history.clear()
    causes._known.clear()
    yield


def here() -> int:
    return sys._getframe(1).f_lineno


def the_last() -> debug.Explanation:
    return debug.compilations()[-1]


class Tagger(nn.Module):
    """A module that embeds tokens, and does other things on request."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11)
        self.doubles = False

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)  # the line of the embedding
        if self.doubles:
            hidden = hidden * 2  # the line of the branch
        return self.head(hidden)


def line_of(words: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


EMBEDDING, BRANCH = line_of("# the line of the emb"), line_of("# the line of the br")


class Training:
    """A model, an optimizer and steps of it."""

    def __init__(self, length: int = 37) -> None:
        torch.manual_seed(0)
        self.model = Tagger().to("xla")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.step(length)
        self.step(length)

    def step(self, length: int = 37, keep: Callable[[Tensor], object] = lambda loss: None) -> None:
        tokens = torch.randint(11, (2, length)).to("xla")
        loss = self.loss(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        keep(loss)
        del loss
        torch_xla.sync()

    def loss(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())


def test_the_first_program_is_no_recompilation() -> None:
    training = Training()
    first = debug.compilations()[0]
    assert not first.is_recompilation and first.differences[0].kind is Kind.NEW
    assert str(first).startswith("compiled (") and "the first program, of" in str(first)
    before = len(debug.compilations())
    training.step()
    assert len(debug.compilations()) == before


def test_a_dimension_that_changes_is_named_with_its_variable_and_line() -> None:
    training = Training()
    training.step(41)
    found = the_last()
    assert str(found) == f"recompiled ({HERE}:{EMBEDDING}): dim 1 of input 'tokens' 37 → 41"
    assert [each.kind for each in found.differences] == [Kind.INPUT]
    assert found.line[1] == EMBEDDING and found.started_by[0] == __file__
    assert found.seconds > 0 and found.operations > 5 and found.is_recompilation


def test_a_rank_and_a_dtype_that_change_are_told() -> None:
    training = Training()
    tokens = torch.ones(37, dtype=torch.int64).to("xla")
    with torch.no_grad():
        kept = training.model(torch.ones(1, 37, dtype=torch.int64).to("xla"))
        torch_xla.sync()
        kept = training.model(tokens)
        torch_xla.sync()
    assert kept.shape == (37, 11)
    assert "shape of input 'tokens' [1, 37] → [37]" in str(the_last())
    training.model.to(torch.float64)
    torch_xla.sync()
    with torch.no_grad():
        kept = training.model(tokens)
        torch_xla.sync()
    assert "dtype of input 'training.model.embedding.weight' float32 → float64" in str(the_last())


def test_parameters_that_the_step_overwrites_have_their_names() -> None:
    training = Training()
    training.model.to(torch.float64)
    torch_xla.sync()
    training.step()
    assert "dtype of input 'self.model.embedding.weight' float32 → float64" in str(the_last())


def test_a_number_that_changes_is_told_once_and_then_an_argument() -> None:
    x = torch.ones(7).to("xla")
    for rate in (0.5, 0.25, 0.125):
        kept = torch.add(x, x, alpha=rate)
        torch_xla.sync()
        if rate == 0.25:
            found = rf"\({HERE}:\d+\): constant 0.5 → 0.25 in add; from now on it is an arg"
            assert re.search(found, str(the_last()))
            assert the_last().differences[0].kind is Kind.NUMBER
            count = len(debug.compilations())
    assert len(debug.compilations()) == count and kept[0].item() == 1.125


def test_a_rate_that_changes_compiles_nothing() -> None:
    training = Training()
    count = len(debug.compilations())
    training.optimizer.param_groups[0]["lr"] = 0.25
    training.step()
    assert len(debug.compilations()) == count


def test_a_place_that_changes_is_told_once_and_then_an_argument() -> None:
    rows = torch.ones(6, 3).to("xla")
    for i in range(4):
        line = here() + 1
        kept = rows[i] + 1
        torch_xla.sync()
    told = [str(each) for each in debug.compilations()]
    assert len(told) == 2 and kept.shape == (3,)
    assert f"({HERE}:{line}): storage offset 0 → 3 in a view; from now on it is an argument" in told[1]


def test_a_branch_is_a_new_operation_at_its_line() -> None:
    training = Training()
    training.model.doubles = True
    training.step()
    assert str(the_last()) == f"recompiled ({HERE}:{BRANCH}): 1 new operation here: mul"
    assert the_last().differences[0].kind is Kind.OPERATIONS


def test_a_branch_left_out_is_told_with_the_line_it_had() -> None:
    x = torch.ones(5).to("xla")
    for doubles in (True, False):
        y = x.sin()
        if doubles:
            y = y * 2
            line = here() - 1
        y = y.cos()
        torch_xla.sync()
    assert str(the_last()) == f"recompiled ({HERE}:{line}): 1 operation left out: mul"


def test_state_that_is_made_in_the_first_step_is_told_as_such() -> None:
    model, means = nn.Linear(3, 2).to("xla"), []
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(4, 3).to("xla")).sum().backward()
        with torch.no_grad():
            means = means or [torch.zeros_like(each) for each in model.parameters()]
            line = here() - 1
            torch._foreach_lerp_(means, [each.grad for each in model.parameters()], 0.1)
        torch_xla.sync()
    left_out = "2 operations left out: 2 × zeros_like (what the first step makes, the next ones have)"
    assert str(the_last()) == f"recompiled ({HERE}:{line}): {left_out}"
    assert len(debug.compilations()) == 2


def test_operations_are_counted_and_named_as_they_are_written() -> None:
    x = torch.ones(5).to("xla")
    for more in (False, True):
        y = x.sin()
        if more:
            for _ in range(3):
                y = y.to(torch.float16).exp().tan().sigmoid().neg().to(torch.float32)
        y = y.cos()
        torch_xla.sync()
    here_are = "6 × to, 3 × exp, 3 × tan, 3 × sigmoid and 3 more"
    assert f": 18 new operations here: {here_are}" in str(the_last())


def test_the_rest_of_a_step_that_other_lines_recorded_before_is_known() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).to("xla")

    def step_with_a_look(x: Tensor) -> int:
        loss = model(x).square().mean()
        loss.item()
        loss.backward()
        torch_xla.sync()
        return here() - 3

    model(torch.ones(4, 3).to("xla")).square().mean().backward()
    torch_xla.sync()
    model.zero_grad()
    line = step_with_a_look(torch.ones(4, 3).to("xla"))
    read, rest = debug.compilations()[1:]
    assert read.is_recompilation and rest.is_recompilation
    assert str(rest).startswith(f"recompiled ({HERE}:{line}): the other ")


def test_an_argument_that_changes_is_told_by_its_name() -> None:
    x = torch.ones(4, 4).to("xla")
    for dim in (0, 1):
        y = x.softmax(dim)
        line = here() - 1
        torch_xla.sync()
    assert y.shape == (4, 4)
    assert str(the_last()) == f"recompiled ({HERE}:{line}): dim of softmax 0 → 1"
    assert the_last().differences[0].kind is Kind.ARGUMENT


def test_the_size_of_what_is_made_on_the_device_is_told() -> None:
    for size in (37, 41):
        noise = torch.zeros(size, device="xla").add(1)
        line = here() - 1
        torch_xla.sync()
    assert noise.shape == (41,)
    assert str(the_last()) == f"recompiled ({HERE}:{line}): size of zeros [37] → [41]"


def test_a_tensor_that_is_kept_makes_another_set_of_live_tensors() -> None:
    training, losses = Training(), []
    training.step(keep=losses.append)
    assert the_last().differences[0].kind is Kind.OUTPUTS
    assert "another set of live tensors: the result of nll_loss_forward is still held at the end" in str(the_last())


def test_who_keeps_a_result_is_told() -> None:
    weight, kept = torch.ones(4, 4).to("xla").requires_grad_(), {}

    def step(keep: str) -> None:
        hidden = (weight * 2).tanh()
        loss = hidden.square().sum()
        kept["number"] = loss.detach()
        if keep:
            kept[keep] = loss if keep == "loss" else hidden.detach()
        del hidden, loss
        torch_xla.sync()

    step("")
    step("loss")
    assert str(the_last()).endswith(
        "another set of live tensors: the result of tanh is still held at the end, "
        "by the graph of the gradient of 'kept['loss']'"
    )
    kept.clear()
    schedule.clear_schedules()
    step("")
    step("hidden")
    assert str(the_last()).endswith("the result of tanh is still held at the end, by 'kept['hidden']'")


def test_an_operation_that_reads_a_result_in_the_place_of_an_input_is_told() -> None:
    def step(y: Tensor | None) -> int:
        z = x.exp()
        w = (z if y is None else y).sin()
        line = here() - 1
        torch_xla.sync()
        assert w.shape == z.shape
        return line

    x = torch.ones(3).to("xla")
    step(torch.ones(3).to("xla"))
    line = step(None)  # the slot that was an input is the result of `exp` now
    assert str(the_last()) == f"recompiled ({HERE}:{line}): sin reads other values than before"


def test_an_input_that_is_held_elsewhere_cannot_be_reused() -> None:
    def step(keep: list[Tensor]) -> None:
        nonlocal state
        before = state
        state = state.exp()
        if keep:
            keep.append(before)
        del before
        torch_xla.sync()

    state = torch.zeros(6, 6).to("xla")
    step([])
    step([state.new_empty(0)])
    assert [each.kind for each in the_last().differences] == [Kind.DONATION]
    assert "is held elsewhere now, so its memory cannot be reused" in str(the_last())


def test_other_operands_are_told() -> None:
    x, y = torch.ones(3).to("xla"), torch.ones(3).to("xla")
    for swapped in (False, True):
        first, second = x.sin(), y.cos()
        z = second - first if swapped else first - second
        torch_xla.sync()
    assert z.shape == (3,)
    assert str(the_last()).endswith("sub reads other values than before")


@pytest.mark.parametrize(("room", "kind"), [("1", Kind.FORGOTTEN), ("2048", Kind.AGAIN)])
def test_a_program_that_had_to_leave_memory_is_told(room: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", room)
    x = torch.ones(7).to("xla")
    for _ in range(2):
        y = x.tan()
        torch_xla.sync()
        schedule.clear_schedules()
    assert y.shape == (7,) and the_last().differences[0].kind is kind
    # Where there was room it has another reason, and more room is no remedy.
    assert ("XLA_COMPILATION_CACHE_SIZE" in str(the_last())) == (kind is Kind.FORGOTTEN)


def test_a_program_elsewhere_in_the_users_code_is_no_recompilation() -> None:
    torch.ones(3, device="xla").sin().tolist()
    torch.ones(3, device="xla").cos().tolist()
    assert "a program unlike those before, of 2 operations" in str(the_last())


def test_a_read_that_cuts_a_step_in_two_is_told_for_both_parts() -> None:
    x = torch.ones(4, 4).to("xla")
    for reads in (False, True):
        y = x.sin()
        z = y.cos()
        if reads:
            z.cpu()
            line = here() - 1
        z = z.tan()
        torch_xla.sync()
    read, rest = debug.compilations()[1:]
    assert [each.kind for each in (*read.differences, *rest.differences)] == [Kind.CUT, Kind.CUT]
    at = f"recompiled ({HERE}:{line}):"
    assert str(read) == f"{at} a value was read before the step ended, so 2 of its 3 operations run by themselves"
    assert str(rest) == f"{at} the other 1 of the 3 operations of a step that ended early because a value was read"


def test_a_read_at_the_end_of_a_step_is_told() -> None:
    training = Training()
    later = prolonged(torch.ones(3, device="xla"))
    training.step(keep=lambda loss: loss.item())
    line = here() - 1
    assert later.shape == (3,) and str(debug.compilations()[-2]).startswith(
        f"recompiled ({HERE}:{line}): a value was read before the step ended, so 6 of its "
    )


def test_a_step_after_what_was_read_of_it_is_no_recompilation() -> None:
    x = torch.ones(4, 4).to("xla")
    for _ in range(2):
        y = x.sin()
        if y.sum().item() > 0:
            x = y.cos().tan()
        torch_xla.sync()
    first, second = debug.compilations()
    assert not first.is_recompilation and not second.is_recompilation


# Refusing


def test_no_recompile_raises_with_the_difference_and_leaves_every_tensor_usable() -> None:
    training = Training()
    counters.clear()
    with debug.no_recompile():
        training.step()
        with pytest.raises(debug.CompilationRefused) as caught:
            training.step(53)
    assert counters.value_of("UncachedCompile") is None
    text = str(caught.value)
    assert text.startswith("no_recompile() refuses to compile a program of 13 operations for ")
    assert f"\n  dim 1 of input 'tokens' 37 → 53 ({__file__}:{EMBEDDING} in forward)\n" in text
    assert "Pad inputs to a few sizes" in text and "every tensor is as it was" in text
    assert any(entry.path == Path(__file__) for entry in caught.traceback)
    weight = training.model.head.weight.detach().cpu()
    assert weight.isfinite().all()
    torch_xla.sync()
    training.step(53)


def test_the_advice_fits_the_reason() -> None:
    def step(dtype: torch.dtype) -> None:
        y = (torch.ones(5, dtype=dtype).to("xla") * 2).sum()
        torch_xla.sync()
        del y

    step(torch.float32)
    with debug.no_recompile(), pytest.raises(debug.CompilationRefused, match="Convert the input to one dtype before"):
        step(torch.float64)


def test_what_was_refused_gives_the_right_values_afterwards() -> None:
    x = torch.arange(5.0).to("xla")
    y = x.exp() + 1
    x.mul_(2)
    with debug.no_recompile(), pytest.raises(RuntimeError, match="no_recompile"):
        y.tolist()
    torch.testing.assert_close(y.cpu(), torch.arange(5.0).exp() + 1)
    assert x.tolist() == [0, 2, 4, 6, 8]


# Telling


@pytest.mark.slow
def test_the_log_tells_a_reason_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    training = Training()
    with caplog.at_level(logging.INFO, "torch_xla.recompiles"):
        for length in range(50, 59):
            training.step(length)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["INFO", "INFO", "WARNING", "WARNING"]
    assert told[0][1] == f"recompiled ({HERE}:{EMBEDDING}): dim 1 of input 'tokens' 37 → 50"
    assert "Such a reason came 8 times" in told[3][1] and "Pad inputs" in told[3][1]


def test_the_text_has_each_reason_once() -> None:
    training = Training()
    training.model.doubles = True
    training.step()
    training.model.doubles = False
    schedule.clear_schedules()
    causes._known.pop()
    training.model.doubles = True
    training.step()
    text = debug.explain_recompiles()
    assert re.match(r"\d+ compilations, \d+\.\d\d s\n", text)
    assert text.count("1 new operation here: mul  [2 times, ") == 1
    debug.clear_history()
    assert debug.explain_recompiles() == "Nothing was compiled.\n"


def test_looking_for_names_holds_nothing() -> None:
    def step(size: int) -> None:
        x = torch.ones(size).to("xla")
        y = x * 2
        torch_xla.sync()
        value = value_of(y)
        held = sys.getrefcount(value)
        del x, y
        assert sys.getrefcount(value) == held - 1

    step(3)
    step(4)
    assert "input 'x' 3 → 4" in str(the_last())


def test_nothing_is_explained_while_no_history_is_kept() -> None:
    debug.keep_history(False)
    try:
        torch.ones(91, device="xla").sin().tolist()
        assert debug.compilations() == []
    finally:
        debug.keep_history(True)


def test_what_is_made_without_a_call_has_the_line_that_fills_it() -> None:
    x = torch.ones(9).to("xla")
    for step in range(4):
        y = x.sin()
        if step < 2:
            y = y > 0.5
        else:
            z = torch.rand(9, device="xla")
            line = here() - 1
        torch_xla.sync()
    assert y.shape == z.shape == (9,)
    assert the_last().line[1] == line, str(the_last())


def test_arguments_of_operations_of_ours_are_told_by_their_names() -> None:
    ids = torch.ones(2, 5, dtype=torch.int64, device="xla")
    for _ in range(3):
        ids = torch.cat([ids, torch.ones(2, 1, dtype=torch.int64, device="xla")], -1)
    torch_xla.sync()
    for width in (20, 24):
        padded = torch.nn.functional.pad(ids, (0, width - 8))
        torch_xla.sync()
        assert padded.shape == (2, width)
    assert "width of pad 20 → 24" in str(the_last())


def test_a_call_that_two_threads_planned_at_once_is_told_as_such() -> None:
    x = torch.ones(6).to("xla")
    y = x.sin()
    torch_xla.sync()
    [operation] = causes._known[-1].graph.operations
    again = replace(operation, plan=replace(operation.plan))
    assert y.shape == (6,) and again.plan is not operation.plan
    told = "sin was planned twice: for operands with other strides, or by two threads at once"
    assert differences._argument(operation, again) == told


def test_reasons_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "_reasons", {})
    monkeypatch.setattr(causes, "_MOST_REASONS", 4)
    for number in range(10):
        difference: Any = SimpleNamespace(kind=next(iter(Kind)))
        explanation: Any = SimpleNamespace(
            is_recompilation=True, differences=[difference], line=("cell.py", number, "f")
        )
        causes._log_explanation(explanation)
    assert 0 < len(causes._reasons) <= 4
