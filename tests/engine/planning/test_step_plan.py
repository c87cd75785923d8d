"""The conclusions of a plan from its programs: sums, times, whether it fits, and advice."""

from dataclasses import replace

import pytest

from torch_xla._engine.metrics.events import Sizes
from torch_xla._engine.planning.cost_model import Collective, Work
from torch_xla._engine.planning.device_specs import DeviceSpec
from torch_xla._engine.planning.planner import Held, Large, PlannedProgram
from torch_xla._engine.planning.step_plan import StepPlan, known_of, seconds_of

SPEC = DeviceSpec("tiny", 1000, {"f32": 100.0, "bf16": 400.0}, 50.0, 10.0)
REDUCE = Collective("all-reduce", ("train.py", 7, "step"), 4, 2, 80, 120, "f32[20]", 40)
WORK = Work({"f32": 600.0}, 150, [REDUCE], [(500.0, "f32", 100), (100.0, "bf16", 50), (0.0, "", 25)])
FIRST = PlannedProgram(3, ("train.py", 9, "step"), Sizes(0, 0, 0, 300, 0), WORK, 0.5, 2, Held(400, 200, 100, 50), 60)
SECOND = PlannedProgram(1, None, Sizes(0, 0, 0, 10, 0), Work(), 0.1, 1, Held(400, 200, 0, 0), 0)
PLAN = StepPlan((FIRST, SECOND), 4, SPEC.memory, SPEC)


def test_each_instruction_takes_as_long_as_the_slower_of_computing_and_moving() -> None:
    seconds = seconds_of(WORK, SPEC)
    assert seconds.computing == pytest.approx(5.0 + 1.0 + 0.5) and seconds.sending == pytest.approx(12.0)
    assert seconds.least == seconds.sending and seconds.most == pytest.approx(18.5)


def test_sums_count_how_often_a_program_runs() -> None:
    assert PLAN.flops == 1200.0 and PLAN.collectives == {"all-reduce": 160}
    assert PLAN.largest is FIRST and PLAN.peak == 400 + 200 + 100 + 50 + 60 + 300
    assert PLAN.fits is False and replace(PLAN, memory=2000).fits is True and replace(PLAN, memory=None).fits is None
    assert StepPlan((), 1, None, None).peak == 0 and StepPlan((), 1, None, None).advice == []


def test_the_report_has_every_program() -> None:
    text = str(PLAN)
    assert text.startswith(
        "Plan of 3 programs on 4 devices (tiny)\n  peak of each device 1.11 kB of 1.00 kB: DOES NOT FIT"
    )
    assert "program 1: 3 operations, 2 times, ends at train.py:9 in step; compiled in 0.5 s" in text
    assert "40" in text and "2 × all-reduce among 4, up to f32[20] at train.py:7 in step" in text
    assert "program 2: 1 operations; compiled in 0.1 s" in text and "takes 12.00 s to 18.50 s" in text
    assert str(StepPlan((), 1, None, None)) == "Plan of 0 programs on 1 device\n  peak of each device 0 B"


def test_the_advice_begins_with_what_spares_most() -> None:
    whole = Large("held", "model.*.weight", "float32[50]", None, 2, 400, is_whole=True)
    several = replace(PLAN, programs=(replace(FIRST, largest=[whole]), SECOND)).advice
    assert several[
        0
    ] == "divide what every device has all of, first 2 × float32[50] model.*.weight: up to 300 B less" or (
        several[1].startswith("divide what every device has all of")
    )
    assert any("intermediates take 300 B" in row for row in several) and "sending takes longer" in several[-1]
    alone = replace(PLAN, devices=1).advice
    assert alone[0].startswith("parameters, gradients and optimizer state take 700 B: sharded over 1 or more devices")
    tight = replace(PLAN, devices=1, memory=300).advice
    assert tight[0].endswith("shard them over several devices (FSDP)")
    assert replace(PLAN, memory=10_000, device=None).advice == []


def test_the_memory_of_a_spec_goes_before_that_of_the_device() -> None:
    assert known_of(None, SPEC) == (SPEC, 1000) and known_of(None, None) == (None, None)
