"""A tensor without memory: programs are recorded with it and looked at, and reads of its values are refused."""

import pytest
import torch

from tests.support.four_behind_one import on, spread_device
from torch_xla._engine.step.pending_text import stablehlo_text
from torch_xla._engine.tensor import placeholder_tensors
from torch_xla._engine.tensor.placeholder_tensors import is_placeholder, placeholder


def test_it_looks_like_any_tensor_and_holds_nothing() -> None:
    x = placeholder([2, 3], torch.bfloat16)
    assert (x.shape, x.dtype, x.device, x.stride()) == ((2, 3), torch.bfloat16, torch.device("xla:0"), (3, 1))
    assert is_placeholder(x) and is_placeholder(x.detach()) and not is_placeholder(torch.ones(2, device="xla"))


def test_a_program_can_be_recorded_and_lowered() -> None:
    x = placeholder((2, 3), torch.float32)
    y = x @ torch.ones(3, 2, device="xla")
    assert y.shape == (2, 2) and not is_placeholder(y)
    assert "tensor<2x3xf32>" in stablehlo_text([y])


def test_where_there_are_several_devices_each_would_have_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with spread_device() as device:
        monkeypatch.setattr(placeholder_tensors, "device_at", lambda _: device)
        x = placeholder((4, 2), torch.float32)
        text = stablehlo_text([x @ on(device, torch.ones(2, 3))])
        assert "tensor<4x2xf32>" in text and is_placeholder(x)


def test_values_are_refused_and_nothing_is_broken() -> None:
    x = placeholder((2,), torch.float32)
    y = x + 1
    for read in (x.cpu, y.cpu, x.tolist, y.sum().item):
        with pytest.raises(RuntimeError, match=r"a placeholder tensor \(float32\[2\]\) holds no memory"):
            read()
    del read
    del x, y
    assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]
