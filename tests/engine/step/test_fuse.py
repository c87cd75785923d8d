"""The third pass: the chosen operations as one graph."""

import pytest
import torch

import torch_xla
from tests.support.pending import prolonged
from torch_xla._engine.ir.graph import decode
from torch_xla._engine.step import fuse as fusing
from torch_xla._engine.step.fuse import fuse
from torch_xla._engine.step.liveness import find_pending, look
from torch_xla._engine.step.partition import FEW, choose
from torch_xla._engine.step.step import Draft
from torch_xla._engine.tensor.device import device_at


def draft(roots: tuple[int, ...] | None) -> Draft:
    device = device_at(0)
    seen = look(device.tape)
    assert seen is not None
    return choose(find_pending(Draft(device, device.tape, seen, seen.live, roots, False, *decode(seen.code))))


def test_the_graph_has_what_is_held_as_results_and_nothing_that_nobody_needs() -> None:
    torch_xla.sync()
    x = torch.ones(3).to("xla")
    held, _ = x.sin(), x.exp().cos()  # the second goes with its name
    del _
    part = fuse(draft(None)).part
    assert part is not None and [str(each.plan.op) for each in part.graph.operations] == ["aten.sin.default"]
    assert part.graph.outputs == (1,) and held.shape == (3,)


def test_a_read_takes_what_its_roots_need_and_leaves_the_rest() -> None:
    torch_xla.sync()
    x = torch.ones(3).to("xla")
    first, second = x.sin(), prolonged(x.cos())
    found = fuse(draft((1,)))
    assert found.part is not None and len(found.part.graph.operations) == 1 and len(found.kept) == FEW + 1
    assert first.shape == second.shape


def test_graphs_are_verified_where_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_xla.sync()
    verified: list[object] = []
    monkeypatch.setattr(fusing, "verify", verified.append)
    x = torch.ones(3).to("xla").sin()
    monkeypatch.setattr(fusing.config, "check", lambda: False)
    fuse(draft(None))
    assert not verified
    monkeypatch.setattr(fusing.config, "check", lambda: True)
    assert verified == [] and fuse(draft(None)).part is not None and len(verified) == 1
    assert x.shape == (3,)
