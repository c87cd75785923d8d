"""The first NaN of a step is traced to its operator and line, by the mistakes that make one."""

import subprocess
import sys
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.metrics.observers import observers
from torch_xla._engine.step import sync
from torch_xla._engine.step.step import Step
from torch_xla.debug import NotFinite, find_nan


def line_of(function: object, offset: int) -> int:
    return function.__code__.co_firstlineno + offset  # type: ignore[attr-defined]


def loss_of(x: torch.Tensor) -> torch.Tensor:
    shifted = x - 1.0
    return torch.log(shifted).mean()


def test_the_logarithm_of_a_negative_number() -> None:
    x = torch.tensor([[2.0, 3.0], [0.5, 4.0]], device="xla", requires_grad=True)
    with pytest.raises(NotFinite) as caught:
        with find_nan():
            loss = loss_of(x * 1.0)
            loss.backward()
            torch_xla.sync()
    assert str(caught.value) == (
        f"The first NaN of this step comes from aten::log at {__file__}:{line_of(loss_of, 2)} in loss_of:\n"
        f"  its result f32[2,2]: 1 of 4 elements are NaN, the first at [1, 0]\n"
        f"  it read f32[2,2] from aten::sub at {__file__}:{line_of(loss_of, 1)} in loss_of: "
        f"from -0.5 to 3, -0.5 at [1, 0]"
    )
    error: object = caught.value
    assert error.operator == "aten::log"  # type: ignore[attr-defined]
    assert error.line == (__file__, line_of(loss_of, 2), "loss_of")  # type: ignore[attr-defined]


def test_the_step_is_complete_when_it_is_refused() -> None:
    x = torch.tensor([1.0, -1.0], device="xla")
    with pytest.raises(NotFinite):
        with find_nan():
            y, z = x.sqrt(), x + 1
            torch_xla.sync()
    assert z.tolist() == [2.0, 0.0]
    assert y.isnan().tolist() == [False, True]


def test_a_gradient_that_is_nan_while_the_loss_is_not() -> None:
    x = torch.tensor([0.0, 4.0]).to("xla").requires_grad_()
    with pytest.raises(NotFinite, match="The first NaN of this step comes from aten::") as caught:
        with find_nan():
            torch.where(x > 1, x.sqrt() / x, torch.zeros_like(x)).sum().backward()
            torch_xla.sync()
    assert caught.value.line[1] == line_of(test_a_gradient_that_is_nan_while_the_loss_is_not, 4)  # type: ignore[attr-defined]


def test_the_overflow_behind_a_nan_is_named() -> None:
    x = torch.tensor([100.0, 1.0]).to("xla")
    with pytest.raises(NotFinite) as caught:
        with find_nan():
            raised = x.exp()
            y = raised - raised
            y.tolist()
    first = line_of(test_the_overflow_behind_a_nan_is_named, 4)
    assert str(caught.value).splitlines()[0].endswith(f"aten::sub at {__file__}:{first + 1} in {caught.value.line[2]}:")  # type: ignore[attr-defined]
    assert str(caught.value).splitlines()[-1] == (
        f"The first inf of this step comes from aten::exp at {__file__}:{first} in "
        "test_the_overflow_behind_a_nan_is_named."
    )


def test_a_nan_from_the_host_is_no_operators_fault() -> None:
    x = torch.tensor([float("nan"), 1.0]).to("xla")
    with pytest.raises(NotFinite, match=r"A NaN came into this step with an input, f32\[2\]") as caught:
        with find_nan():
            (x + 1).tolist()
    assert caught.value.operator is None  # type: ignore[attr-defined]


def test_what_writes_a_nan_on_purpose_is_found_with_its_number() -> None:
    with pytest.raises(NotFinite, match="aten::full") as caught:
        with find_nan():
            torch.full((2,), float("nan"), device="xla").tolist()
    assert str(caught.value).endswith("\n  with nan")


def test_inf_counts_on_request_alone() -> None:
    x = torch.tensor([1.0, 2.0]).to("xla")
    mask = torch.tensor([True, False]).to("xla")
    with find_nan():
        assert x.masked_fill(mask, float("-inf")).exp().tolist()[0] == 0.0
        assert x.masked_fill(mask, float("-inf")).tolist()[0] == float("-inf")
    with pytest.raises(NotFinite, match="The first inf of this step comes from aten::div at"):
        with find_nan(inf=True):
            (x / torch.zeros(2, device="xla")).tolist()


def test_random_steps_draw_the_same_again() -> None:
    torch_xla.manual_seed(3)
    x = torch.tensor([1.0]).to("xla")
    with pytest.raises(NotFinite, match=r"aten::sqrt at .*\n.*: \d+ of 1000 elements are NaN"):
        with find_nan():
            (torch.randn(1000, device="xla") * x).sqrt().sum().tolist()


def test_masked_nans_are_no_findings() -> None:
    x = torch.tensor([-1.0, 4.0]).to("xla")
    with find_nan():
        y = torch.where(x > 0, x.sqrt(), 0.0)
        torch_xla.sync()
    assert y.tolist() == [0.0, 2.0]


def test_what_the_compiler_does_to_the_whole_is_said_to_be_its_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([1.0, 4.0]).to("xla")
    real = sync.run_step

    def run(step: Step, ready: Any = None) -> None:
        real(step, ready)
        for value in step.outputs:
            value.buffer = value.buffer * float("nan")

    monkeypatch.setattr(sync, "run_step", run)
    with pytest.raises(NotFinite, match="NaN that none of its 1 operators makes when they run one by one"):
        with find_nan():
            x.sqrt().tolist()


def test_donated_inputs_can_still_be_read() -> None:
    x = torch.rand(64, 64).to("xla")
    torch_xla.sync()
    with pytest.raises(NotFinite, match="aten::log at"):
        with find_nan():
            x.sub_(2.0)
            torch_xla.sync()
            x.log_()
            torch_xla.sync()


def test_nothing_is_on_outside_of_the_block() -> None:
    with find_nan():
        assert observers.inspect_step is not None
    assert observers.inspect_step is None
    assert torch.tensor([-1.0]).to("xla").log().isnan().item()


def test_anomaly_mode_of_pytorch_works_too() -> None:
    x = torch.tensor([0.0]).to("xla").requires_grad_()
    with pytest.warns(UserWarning, match="Error detected in SqrtBackward0"):
        with torch.autograd.set_detect_anomaly(True):
            with pytest.raises(RuntimeError, match="Function 'SqrtBackward0' returned nan values"):
                (torch.sqrt(x) * 0).sum().backward()


def test_an_operator_within_a_compiled_graph_is_named() -> None:
    @torch.compile(backend="openxla")
    def loss_of_compiled(x: torch.Tensor) -> torch.Tensor:
        shifted = x - 1
        return shifted.log().sum()

    line = test_an_operator_within_a_compiled_graph_is_named.__code__.co_firstlineno + 4
    x = torch.tensor([0.5, 2.0]).to("xla")
    with pytest.raises(NotFinite, match="aten::log at .* in loss_of_compiled, within compiled::inference_") as caught:
        with find_nan():
            loss_of_compiled(x).tolist()
    assert caught.value.operator == "aten::log"  # type: ignore[attr-defined]
    assert caught.value.line[1] == line  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_setting_searches_a_whole_program() -> None:
    program = "import torch, torch_xla\nx = torch.tensor([-1.0]).to('xla')\ny = x.log()\ntorch_xla.sync()\n"
    done = subprocess.run([sys.executable, "-c", program], env={"XLA_FIND_NAN": "1"}, capture_output=True, text=True)
    assert "NotFinite: The first NaN of this step comes from aten::log at <string>:3 in <module>" in done.stderr
