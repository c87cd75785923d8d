"""The result of `torch_xla.compile`."""

import pytest
import torch

from torch_xla._engine.compiled.compiled_function import Replayer, compiled
from torch_xla._engine.compiled.region import Region
from torch_xla._engine.compiled.replay.replayed_function import Replayed, ReplayedByItself


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_function_becomes_a_region_or_a_replay() -> None:
    region, replay = (compiled(double, "", False, None, replay=replay) for replay in (False, True))
    assert isinstance(replay, Replayed) and not isinstance(region, Replayed)
    assert region.__name__ == replay.__name__ == "double"
    x = torch.ones(2).to("xla")
    assert region(x).tolist() == replay(x).tolist() == [2.0, 2.0]


def test_where_nobody_said_whether_to_replay_it_is_decided_later() -> None:
    assert isinstance(compiled(double, "", False, None, replay=None), ReplayedByItself)
    assert not isinstance(compiled(double, "", False, None, replay=None, options={"xla_any": True}), Replayed)
    region = compiled(None, "step", False, None, replay=None)
    assert isinstance(region(double), ReplayedByItself)
    with region:
        assert (torch.ones(2).to("xla") + 1).tolist() == [2.0, 2.0]


def test_without_a_function_it_takes_one_or_is_a_block() -> None:
    region, replay = (compiled(None, "step", False, None, replay=replay) for replay in (False, True))
    assert isinstance(region, Region) and isinstance(replay, Replayer)
    assert isinstance(replay(double), Replayed)
    with region:
        x = torch.ones(2).to("xla") + 1
    assert region(double)(x).tolist() == [4.0, 4.0]


def test_a_block_cannot_be_replayed() -> None:
    with pytest.raises(RuntimeError, match=r"write `@torch_xla.compile\(replay=True\)` above its `def`"):
        with compiled(None, "", False, None, replay=True):
            pass


def test_a_replay_has_no_options_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"replay=True with custom_compile_options: .*set_custom_compile_options"):
        compiled(double, "", False, None, replay=True, options={"xla_any": True})
    assert isinstance(compiled(double, "", False, None, replay=True, options={}), Replayed)
