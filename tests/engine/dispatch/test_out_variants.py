"""Tensors given as `out=`, and others that one operator writes: an interrupt finds all of them written, or none."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla import _engine

HERE = _engine.__path__[0]


class Interrupting:
    """Raises `KeyboardInterrupt` where Python would: at a beginning or behind a call, both counted from 0.

    Not behind the function that takes a lock from Python 3.14 on, where Python does not look (`atomic.py`).
    """

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, kind: str, _: object) -> None:
        is_taken = kind == "return" and frame.f_code.co_qualname == "_Lock.__enter__"
        if kind != "c_call" and not is_taken and frame.f_code.co_filename.startswith(HERE):
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt


def interrupted(call: Callable[[], Any], at: int) -> bool:
    before = sys.getprofile()
    gc.disable()  # what a callback or finalizer raises ends there: no interrupt of the call
    sys.setprofile(Interrupting(at))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
        gc.enable()
    return False


def _max(sizes: tuple[int, int], device: str) -> tuple[list[torch.Tensor], Callable[[], Any]]:
    x = torch.tensor([[1.0, 3.0], [2.0, 0.0], [5.0, 6.0]]).to(device)
    whole = torch.full((sizes[0] + 2,), 7.0).to(device)
    places = torch.full((sizes[1],), 7).to(device)
    values = whole[1 : 1 + sizes[0]]
    return [whole, values, places], lambda: torch.max(x, 1, out=(values, places))


def _statistics(device: str) -> tuple[list[torch.Tensor], Callable[[], Any]]:
    mean, var, x = (
        torch.zeros(2).to(device),
        torch.ones(2).to(device),
        torch.tensor([[1.0, 2.0], [5.0, 8.0]]).to(device),
    )
    return [mean, var], lambda: torch.nn.functional.batch_norm(x, mean, var, training=True)


CASES: dict[str, Callable[[str], tuple[list[torch.Tensor], Callable[[], Any]]]] = {
    "tensors of this size": lambda device: _max((3, 3), device),
    "both resized": lambda device: _max((2, 0), device),
    "one resized beyond its memory": lambda device: _max((0, 3), device),
    "statistics": _statistics,
}


def _seen(tensors: list[torch.Tensor]) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", list(CASES))
def test_an_interrupt_finds_all_written_or_none(name: str) -> None:
    theirs, call = CASES[name]("cpu")
    before = _seen(theirs)
    call()
    after = [tensor.tolist() for tensor in theirs]
    tensors, call = CASES[name]("xla")
    call()
    assert _seen(tensors)[1:] == after[1:] if "resized" in name else _seen(tensors) == after
    after = _seen(tensors)  # of memory that grows, PyTorch's elements beyond are anything
    at = 0
    while True:
        tensors, call = CASES[name]("xla")
        torch_xla.sync()
        if not interrupted(call, at):
            break
        assert _seen(tensors) in (before, after), at
        at += 1
    assert at > 30
    assert _seen(tensors) == after
