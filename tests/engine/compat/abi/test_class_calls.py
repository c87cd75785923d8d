"""A class of PyTorch is called by way of a class of ours, or stays as it is and the release is refused."""

import ctypes
from typing import Any

import pytest
import torch

from torch_xla._engine.compat.abi import class_calls


@pytest.fixture
def kept() -> Any:
    """The class of `torch.Generator`, which is the same after the test."""
    kind = type(torch.Generator)
    yield kind
    assert type(torch.Generator) is kind


def test_a_generator_is_still_a_generator(kept: Any) -> None:
    assert torch.Generator.__module__ == "torch._C" and torch.Generator().device.type == "cpu"
    made = torch.Generator("xla")
    assert isinstance(made, torch.Generator) and made.device.type == "xla"


def test_a_class_that_is_kept_elsewhere_is_refused(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = (ctypes.c_void_p * 4)()
    monkeypatch.setattr(class_calls, "_class_of", lambda thing: ctypes.c_void_p.from_buffer(memory, 8))
    with pytest.raises(RuntimeError, match="classes written in C of torch .* differ .* pip install"):
        class_calls.answer_calls_of(torch.Generator, lambda *_: None)
    assert not any(memory)  # nothing was written


def test_a_class_that_does_not_become_the_new_one_is_put_back(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = (ctypes.c_void_p * 4)(None, id(kept))
    monkeypatch.setattr(class_calls, "_class_of", lambda thing: ctypes.c_void_p.from_buffer(memory, 8))
    with pytest.raises(RuntimeError, match="did not get its new class"):
        class_calls.answer_calls_of(torch.Generator, lambda *_: None)
    assert memory[1] == id(kept)
