"""A step in a file: what is written is what comes back, and a wrong rule is the first operator that differs."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.values import capture, cpu_reference
from torch_xla._engine.lowering.machinery import registry
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla.debug import capture_step, replay_step
from torch_xla.debug.replay import main

aten = torch.ops.aten


def captured(path: Path, compute: Callable[[], Any], every_result: bool = True) -> Any:
    with capture_step(path, every_result):
        kept = compute()
        torch_xla.sync()
    return kept


def test_a_step_of_training_agrees_with_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    net.to("xla")
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = torch.rand(5, 6).to("xla"), torch.tensor([0, 1, 2, 1, 0]).to("xla")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    captured(tmp_path / "step.pt", step)
    found = replay_step(tmp_path / "step.pt")
    assert found.agrees and found.first is None and not found.skipped, str(found)
    assert found.compared == found.operators > 12 and found.outputs > 8
    assert "operators compared gives on the device what PyTorch gives on the CPU" in str(found)


def test_attention_and_views_agree_with_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    q = torch.rand(2, 4, 5, 8).to("xla").requires_grad_()
    k, v = torch.rand(2, 2, 6, 8).to("xla").requires_grad_(), torch.rand(2, 2, 6, 8).to("xla").requires_grad_()
    bias = torch.rand(5, 6).to("xla").requires_grad_()

    def compute() -> Any:
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        b = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        (a.square().sum() + b.sum()).backward()
        whole = torch.zeros(4, 4, device="xla")
        whole[:, 1] = 2
        whole.t()[0].add_(1)
        return a, b, whole, torch.view_as_real(torch.fft.fft(q.detach())).conj()

    captured(tmp_path / "step.pt", compute)
    found = replay_step(tmp_path / "step.pt")
    assert found.agrees and not found.skipped, str(found)


def leaf(*size: int) -> torch.Tensor:
    return torch.randn(*size).to("xla").requires_grad_()


def places(most: int, *size: int) -> torch.Tensor:
    return torch.randint(most, size).to("xla")


def indexed() -> torch.Tensor:
    x = leaf(4, 5)
    written = torch.zeros(5, device="xla").index_put((places(5, 3),), leaf(3), accumulate=True)
    return x[places(4, 3), :2].sum() + x.gather(1, places(5, 4, 2)).sum() + x[x.detach() > 0].sum() + written.sum()


def moved() -> torch.Tensor:
    x = leaf(2, 3, 4).permute(2, 0, 1).reshape(4, 6)
    return x.unfold(1, 2, 2).sum() + leaf(4, 4).diagonal().sum() + leaf(4, 4).tril().flip(0).roll(1).sum()


def aligned() -> torch.Tensor:
    lengths = torch.tensor([10, 9]).to("xla"), torch.tensor([3, 4]).to("xla")
    return torch.nn.functional.ctc_loss(leaf(10, 2, 5).log_softmax(-1), places(4, 2, 4) + 1, *lengths)


STEPS: dict[str, Callable[[], torch.Tensor]] = {
    "indexing": indexed,
    "views": moved,
    "a loss with results that are not specified": aligned,
    "gradients that are all rounding": lambda: torch.nn.functional.group_norm(leaf(4, 6, 5), 2).square().sum(),
    "complex numbers": lambda: (
        torch.fft.rfft(leaf(4, 8)).abs().sum() + torch.view_as_complex(leaf(3, 2)).exp().abs().sum()
    ),
    "matrices": lambda: torch.linalg.solve(leaf(3, 3), leaf(3, 2)).sum() + torch.linalg.det(leaf(3, 3)),
    "lower precision": lambda: (leaf(4).half() @ leaf(4).half()).float() + leaf(4).bfloat16().sum().float(),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_of_all_kinds_agree_with_pytorch(step: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    captured(tmp_path / "step.pt", lambda: STEPS[step]().backward())
    found = replay_step(tmp_path / "step.pt")
    assert found.agrees and not found.skipped and found.compared == found.operators, str(found)


def test_what_pytorch_refuses_on_the_cpu_is_not_compared() -> None:
    operation = graph_of([torch.rand(2, 3).to("xla").mT.clone()]).graph.operations[-1]
    with pytest.raises(cpu_reference.NotRunnable, match="PyTorch on the CPU raises: "):
        cpu_reference.run(replace(operation.plan, op=aten.mm.default), [torch.ones(2), torch.ones(2)], [])


def wrong_rule(monkeypatch: pytest.MonkeyPatch, op: Any, change: Callable[[Any], Any]) -> None:
    rule = registry._rules[op]
    monkeypatch.setitem(registry._rules, op, replace(rule, lower=lambda *a, **k: change(rule.lower(*a, **k))))


def test_the_first_operator_that_differs_is_the_one_with_the_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to("xla")
    wrong_rule(monkeypatch, aten.erf.default, lambda array: array.at[1, 2].add(0.25))
    line = test_the_first_operator_that_differs_is_the_one_with_the_mistake.__code__.co_firstlineno + 6
    captured(tmp_path / "step.pt", lambda: (x * 3).erf().exp().sum())
    found = replay_step(tmp_path / "step.pt")
    first = found.first
    assert first is not None and not found.agrees
    assert first.operator == "aten::erf" and first.line is not None and first.line[:2] == (__file__, line)
    assert first.place == (1, 2) and first.device - first.cpu == pytest.approx(0.25, abs=1e-6)
    assert [each.operator for each in found.differences] == ["aten::erf"], "what follows is right for what it reads"
    assert [each.operator for each in found.output_differences] == ["aten::sum"]
    text = str(found)
    assert (
        f"1 of 4 operators compared differ from PyTorch on the CPU, the first is\n  aten::erf at {__file__}:{line}"
        in text
    )
    assert "most at [1, 2]: device" in text


def test_nan_on_one_side_differs_and_nan_on_both_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([-1.0, 4.0]).to("xla")
    captured(tmp_path / "same.pt", x.sqrt)
    assert replay_step(tmp_path / "same.pt").agrees
    wrong_rule(monkeypatch, aten.digamma.default, lambda array: array.at[1].set(float("nan")))
    captured(tmp_path / "other.pt", x.digamma)
    first = replay_step(tmp_path / "other.pt").first
    assert first is not None and first.relative == float("inf") and first.place == (1,)


def test_a_difference_of_the_whole_that_no_operator_has_is_said_to_be_the_compilers(tmp_path: Path) -> None:
    path = tmp_path / "step.pt"
    x = torch.rand(3).to("xla")
    captured(path, lambda: x.cos())
    content = torch.load(path)
    content["tensors"]["0.output.0"] += 0.5
    torch.save(content, path)
    found = replay_step(path)
    assert found.first is None and len(found.output_differences) == 1
    assert "No operator differs by itself" in str(found)
    assert replay_step(path, tolerance=1.0).agrees


def test_random_numbers_are_the_devices(tmp_path: Path) -> None:
    x = torch.rand(100).to("xla")
    captured(tmp_path / "step.pt", lambda: torch.nn.functional.dropout(x, 0.5) + 1, every_result=False)
    found = replay_step(tmp_path / "step.pt")
    assert found.agrees and found.outputs == 1 and found.compared == 0
    assert found.skipped == {"aten::native_dropout": cpu_reference.RANDOM}
    assert "Not compared: aten::native_dropout (it draws random numbers, others on each platform)" in str(found)


def test_a_file_without_the_results_of_operators_is_smaller(tmp_path: Path) -> None:
    x = torch.rand(100, 100).to("xla")

    def compute() -> torch.Tensor:
        return ((x @ x).sin() @ x).sum()

    captured(tmp_path / "all.pt", compute)
    captured(tmp_path / "few.pt", compute, every_result=False)
    assert (tmp_path / "few.pt").stat().st_size < (tmp_path / "all.pt").stat().st_size / 3
    found = replay_step(tmp_path / "few.pt")
    assert found.agrees and "No operator was compared by itself: their results are not in this file." in str(found)


def test_what_exists_in_this_process_alone_is_named_and_not_compared(tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: (x - 1).exp().sum(), backend="openxla")
    x = torch.rand(4).to("xla")
    captured(tmp_path / "step.pt", lambda: compiled(x))
    found = replay_step(tmp_path / "step.pt")
    ((name, reason),) = found.skipped.items()
    assert name.startswith("compiled::inference_") and reason == "it is not in the file"
    assert found.outputs == 0 and found.agrees
    assert "No result of the step was compared." in str(found)


def test_every_program_of_the_block_is_in_the_file(tmp_path: Path) -> None:
    x = torch.rand(3).to("xla")
    with capture_step(tmp_path / "step.pt"):
        if (x * 2).sum().item() > 0:
            x.sub_(1)
        torch_xla.sync()
        x.add_(2)
    assert replay_step(tmp_path / "step.pt").programs == 3


def test_a_block_that_raises_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        with capture_step(tmp_path / "step.pt"):
            raise KeyError
    assert not (tmp_path / "step.pt").exists()


def test_what_is_no_captured_step_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="weights.pt is not a captured step: KeyError: 'header'. One is made by"):
        replay_step(path)
    path.write_text("nothing")
    with pytest.raises(ValueError, match="is not a captured step: UnpicklingError: Weights only load failed. One is"):
        replay_step(path)
    torch.save({"header": json.dumps({"format": "another"}), "tensors": {}}, path)
    with pytest.raises(ValueError, match="it was written by something else"):
        replay_step(path)
    torch.save({"header": json.dumps({"format": capture.FORMAT, "version": 99}), "tensors": {}}, path)
    with pytest.raises(ValueError, match="its format is number 99, this one reads up to 1. Update torch_xla"):
        replay_step(path)


class Malice:
    def __reduce__(self) -> Any:
        return print, ("code from a file ran",)


def test_no_code_of_a_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"header": Malice(), "tensors": {}}, tmp_path / "step.pt")
    with pytest.raises(ValueError, match="is not a captured step: UnpicklingError"):
        replay_step(tmp_path / "step.pt")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.rand(4).to("xla")
    captured(tmp_path / "right.pt", x.sin)
    wrong_rule(monkeypatch, aten.lgamma.default, lambda array: array + 1)
    captured(tmp_path / "wrong.pt", x.lgamma)

    assert main([str(tmp_path / "right.pt")]) == 0
    assert "1 operator in 1 program," in capsys.readouterr().out
    assert main([str(tmp_path / "missing.pt")]) == 2
    assert "No such file" in capsys.readouterr().err
    command = [sys.executable, "-m", "torch_xla.debug.replay", str(tmp_path / "wrong.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "aten::lgamma at" in done.stdout
