"""A part of a program that may run nothing."""

import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.logs import evaluation_ban
from torch_xla._engine.metrics import events


def test_what_would_run_is_refused_with_its_line_and_runs_later() -> None:
    x = torch.ones(3).to("xla") * 2
    evaluation_ban.allow(False)
    try:
        assert not evaluation_ban.is_allowed()
        evaluation_ban.allow(False)  # once more changes nothing
        for look in (lambda: x.sum().item(), torch_xla.sync):
            with pytest.raises(
                RuntimeError, match=r"test_evaluation_ban\.py:\d+ in .* makes recorded operations run, which"
            ):
                look()
        y = x + 1  # recording goes on
    finally:
        evaluation_ban.allow(True)
    assert evaluation_ban.is_allowed() and not events.guarded
    assert y.tolist() == [3.0, 3.0, 3.0]
