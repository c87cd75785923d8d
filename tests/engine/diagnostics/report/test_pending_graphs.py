"""Tensors whose computation has grown long while it waits."""

import torch

import torch_xla
from torch_xla._engine.diagnostics.report.pending_graphs import tensors_report
from torch_xla._engine.tensor.device import current_index, device_at


def report(threshold: int) -> list[str]:
    return tensors_report(device_at(current_index()), threshold).splitlines()


def test_the_longest_come_first_with_their_lines() -> None:
    torch_xla.sync()
    x = torch.ones(3).to("xla")
    y = x * 2
    z = y.exp().sum() + 1
    title, first = report(4)
    assert title == "Tensors of xla:0 that need 4 recorded operations or more: 1"
    assert first.startswith("  f32[] needs 4 operations made at ") and "test_pending_graphs.py:" in first
    assert [row.split()[2] for row in report(1)[1:]] == ["4", "1"] and z.shape == ()


def test_what_is_computed_or_held_by_nobody_needs_nothing() -> None:
    x = torch.ones(3).to("xla")
    torch_xla.sync()
    (x * 2).exp()
    assert report(1) == ["Tensors of xla:0 that need 1 recorded operations or more: 0"]
