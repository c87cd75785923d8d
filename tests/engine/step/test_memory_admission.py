import pytest
import torch

import torch_xla
from torch_xla._engine.errors import OutOfMemory
from torch_xla._engine.step import memory_admission


def _step(weight: torch.Tensor) -> torch.Tensor:
    weight.mul_(2)
    return (weight[:, None] * weight[None, :]).exp()


def test_a_program_without_room_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.full((5000,), 0.5, device="xla")
    torch_xla.sync()
    total = _step(weight)
    with monkeypatch.context() as patch:
        patch.setattr(memory_admission, "left", lambda target: 80 << 20)
        for _ in range(2):  # it stays refused
            with pytest.raises(OutOfMemory) as caught:
                torch_xla.sync()
    text = str(caught.value)
    assert "There is no room for the program of step" in text and "83.89 MB are left." in text
    assert "Nothing was started, and what the step wrote to tensors is undone" in text
    assert "torch.utils.checkpoint" in text and "The largest tensors that live:" in text and "20.00 kB" in text
    assert "results 100.00 MB" in text and " in _step  (" in text
    assert total[0, 0].item() == pytest.approx(2.71828, rel=1e-4) and weight.tolist() == [1] * 5000


def test_a_program_with_room_or_unasked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(memory_admission, "left", lambda target: asked.append(target) or 80 << 20)
    small = torch.ones(100, device="xla") * 3
    assert small.sum().item() == 300 and not asked
    monkeypatch.setenv("XLA_CHECK_MEMORY", "0")
    weight = torch.full((5000,), 0.25, device="xla")
    assert _step(weight)[1, 2].item() == pytest.approx(1.28403, rel=1e-4) and not asked
