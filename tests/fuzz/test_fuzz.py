"""Random programs agree with the CPU; and where a rule is wrong, they find it and say so in a few lines."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support import programs
from torch_xla._engine.lowering.machinery import registry
from torch_xla._engine.lowering.views.storage_access import WRITE

from .check import Failure, difference, forget, shortened
from .program import Line, Program
from .work import check_programs, programs_of, running, way_of

aten = torch.ops.aten


@pytest.fixture
def nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(programs, "_functions", {})
    yield
    forget()


def broken(monkeypatch: pytest.MonkeyPatch, op: Any, wrong: Any) -> None:
    monkeypatch.setitem(registry._rules, op, replace(registry._rules[op], lower=wrong))


def of(*sources: str) -> Program:
    lines = [
        Line(source, f"t{i}" if "_(" not in source and source != "sync()" else "") for i, source in enumerate(sources)
    ]
    return Program(tuple(lines))


def test_programs_agree_with_the_cpu() -> None:
    found = check_programs((range(0, 32), 31))
    assert found.ways == {"compiled": 2, "eager": 4, "interpreted": 26}
    assert not found.failures, found.failures[0][1].script()


def test_a_wrong_rule_is_found_and_told_in_a_few_lines(
    monkeypatch: pytest.MonkeyPatch, nothing_is_traced: None
) -> None:
    broken(monkeypatch, aten.flip.default, lambda self, dims: self)
    program = of(
        "torch.tensor([1, 2, 3], device=device)", "torch.ones((2, 3), device=device)", "t1 + 1", "sync()", "t0.flip(0)",
        "t4 * 2", "t1.add_(1)", "t2 - t1",
    )  # fmt: skip
    with running("interpreted"):
        text = difference(program)
        assert text
        failure = shortened(program, text)
    assert [line.text for line in failure.program.lines] == [
        "t0 = torch.tensor([1, 2, 3], device=device)",
        "t4 = t0.flip(0)",
    ]
    assert failure.text == "t4 is [1, 2, 3], not [3, 2, 1]"


def test_random_programs_find_writes_that_are_lost(monkeypatch: pytest.MonkeyPatch, nothing_is_traced: None) -> None:
    broken(monkeypatch, WRITE, lambda base, *rest: base)
    for _, program in programs_of(range(0, 200)):
        with running("interpreted"):
            text = difference(program)
            if text:
                forget()
                failure = shortened(program, text)
                break
    assert len(failure.program.lines) <= 6, failure.script()
    assert len(failure.program.lines) < len(program.lines)


def test_what_only_the_cpu_refuses_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(x: torch.Tensor, *devices: str) -> None:
        if x.device.type in devices:
            raise ValueError(x.device.type)

    monkeypatch.setattr(torch, "refuse", refuse, raising=False)
    one = Line("torch.ones(2, device=device)", "t0")
    assert difference(Program((one, Line("torch.refuse(t0, 'cpu', 'xla')", "", "ValueError")))) == ""
    text = "`torch.refuse(t0, 'cpu')` AssertionError: did not raise ValueError"
    assert difference(Program((one, Line("torch.refuse(t0, 'cpu')", "", "ValueError")))) == text
    assert difference(Program((one, Line("torch.refuse(t0, 'xla')")))) == "`torch.refuse(t0, 'xla')` ValueError: xla"


def test_a_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = Program((Line("torch.ones(2, device=device)", "t0"), Line("t0[9]", "", "IndexError"), Line("read(t0)")))
    exec(Failure(program, "nothing").script(), {})  # noqa: S102
    torch.set_grad_enabled(True)
    assert "out of bounds" in capsys.readouterr().out


def test_a_seed_gives_the_same_program_wherever_a_run_begins() -> None:
    whole = dict(programs_of(range(0, 12)))
    assert dict(programs_of(range(10, 12))) == {seed: whole[seed] for seed in (10, 11)}


def test_one_program_of_so_many_is_compiled_as_a_whole() -> None:
    assert [way_of(seed, 4) for seed in (0, 1, 2, 4, 9)] == ["compiled", "eager", "interpreted", "compiled", "eager"]


def test_a_view_that_autograd_has_given_up_is_looked_at_no_further() -> None:
    lines = (
        Line("torch.ones((2, 2), device=device, requires_grad=True)", "t0"),
        Line("t0 * 2", "t1"),
        Line("t1.unbind(-1)[0]", "t2"),
        Line("t1.mul_(2)"),
    )
    assert difference(Program(lines, gradients=True)) == ""
