"""A script is planned until it has ended its steps; what it reads meanwhile is zero."""

from pathlib import Path

import pytest
import torch

import torch_xla
from tests.support.topologies import needs_tpu_compiler
from torch_xla import plan as command
from torch_xla._engine.planning import script_plan
from torch_xla._engine.planning.script_plan import ScriptPlan
from torch_xla._engine.planning.step_plan import StepPlan
from torch_xla._engine.runtime import platform, topologies

SCRIPT = """
import sys
import torch
import torch_xla

model = torch.nn.Linear(64, 64).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64).to("xla")).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    print("step", step, loss.item(), sys.argv[1:])
"""


def steps(ended: list[int], count: int = 5) -> None:
    x = torch.ones(3, device="xla")
    for number in range(count):
        x = x + 1
        torch_xla.sync()
        ended.append(number)
        assert x.sum().item() == 0


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the devices of this process as those of every topology."""
    monkeypatch.setattr(topologies, "devices_of", lambda topology: platform.local_devices()[:1])
    monkeypatch.setitem(topologies.OPTIONS, "cpu", {})


@pytest.mark.usefixtures("here")
def test_a_script_ends_with_its_last_step() -> None:
    ended: list[int] = []
    found = script_plan.plan_of_script(lambda: steps(ended), 2, "v5e:1x1")
    assert ended == [0] and found.reads == 1  # the second step ended it
    assert sum(program.runs for program in found.plan.programs) == 3
    assert "1 reads of values that a plan does not compute returned zeros" in str(found)
    assert torch.ones(2, device="xla").sum().item() == 2  # nothing is planned any more


@pytest.mark.usefixtures("here")
def test_a_script_may_end_before_and_its_errors_are_its_own() -> None:
    ended: list[int] = []
    script_plan.plan_of_script(lambda: steps(ended, 2), 9, "v5e:1x1")
    assert ended == [0, 1]

    def leaves(code: int) -> None:
        raise SystemExit(code)

    assert script_plan.plan_of_script(lambda: leaves(0), 1, "v5e:1x1").plan.programs == ()
    with pytest.raises(SystemExit, match="3"):
        script_plan.plan_of_script(lambda: leaves(3), 1, "v5e:1x1")


def test_a_script_without_a_program_is_told_why() -> None:
    assert str(ScriptPlan(StepPlan((), 1, None, None), 0)).endswith("it must move its model to the device 'xla'")


@pytest.mark.usefixtures("here")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert command.main(["--topology", "v5e:1x1", str(script), "--size", "3"]) == 0
    said = capsys.readouterr().out
    assert "step 0 0.0 ['--size', '3']" in said and "step 1" not in said and "Plan of 2 programs on v5e:1x1" in said
    script.write_text("print('nothing')")
    assert command.main(["--topology", "v5e:1x1", str(script)]) == 2


PLAIN = """
import torch

one, other = (torch.nn.Linear(64, 64).to("xla") for _ in range(2))
optimizers = [torch.optim.AdamW(model.parameters()) for model in (one, other)]
for step in range(100):
    loss = (one(torch.randn(8, 64, device="xla")) - other(torch.ones(8, 64, device="xla"))).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    %s
    print("step", step)
"""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("end", ["loss.item()", "torch.xla.synchronize()", "pass"])
def test_a_script_that_never_syncs_ends_with_the_updates_of_its_optimizers(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN % end)
    assert command.main([str(script), "--lr", "3", "--topology", "v5e:1x1", "--steps", "3"]) == 0
    said = capsys.readouterr().out
    assert "step 1" in said and "step 2" not in said  # the last update of the third step ended it
    assert "optimizer state 0 B" not in said and "optimizer state" in said


def test_a_topology_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([str(tmp_path / "train.py"), "--top", "v5e:1x1"])
    assert "required: --topology" in capsys.readouterr().err


@needs_tpu_compiler
def test_the_command_for_a_tpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert command.main(["--topology", "v5e:1x1", str(script)]) == 0
    said, complained = capfd.readouterr()
    assert "Plan of 2 programs on v5e:1x1, 1 device (TPU v5e)" in said and complained == ""
