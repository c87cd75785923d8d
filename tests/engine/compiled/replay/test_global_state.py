"""The state of PyTorch and of this thread that a recorded program depends on."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla  # noqa: F401
from torch_xla._engine.compiled.replay.global_state import changed, circumstances, hindrance
from torch_xla._engine.tensor.device import device_for


class Mode(TorchDispatchMode):
    """Sees every operator."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


CHANGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("xla"),
    "autocast without its cache": lambda: torch.autocast("xla", cache_enabled=False),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "forward mode": torch.autograd.forward_ad.dual_level,
    "a mode of operators": Mode,
    "hooks of saved tensors": save_on_cpu,
    "a device": lambda: torch.device("cpu"),
    "a precision of JAX": lambda: jax.default_matmul_precision("high"),
}

NAMED = {
    "no gradients": "whether gradients are recorded",
    "inference mode": "whether gradients are recorded",
    "autocast": "autocast of 'xla'",
    "autocast without its cache": "autocast of 'xla'",
    "anomalies": "the detection of anomalies",
    "forward mode": "the level of forward-mode differentiation",
    "a mode of operators": "a mode or `torch.device` around the call",
    "hooks of saved tensors": "a mode or `torch.device` around the call",
    "a device": "a mode or `torch.device` around the call",
    "a precision of JAX": "a setting that programs are compiled with",
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_seen_and_its_end_too(name: str) -> None:
    device = device_for(None)
    before = circumstances(device)
    assert circumstances(device) == before
    with CHANGES[name]():
        assert circumstances(device) != before
        assert changed(before, circumstances(device)) == NAMED[name]
    assert circumstances(device) == before and changed(before, circumstances(device)) == ""


def test_the_default_dtype_and_the_thread_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_for(None)
    before, found = circumstances(device), []
    thread = threading.Thread(target=lambda: found.append(circumstances(device)))
    thread.start()
    thread.join()
    assert found[0] != before and thread.ident in found[0] and thread.ident not in before
    torch.set_default_dtype(torch.float64)
    try:
        assert circumstances(device) != before
    finally:
        torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("XLA_USE_BF16", "1")
    assert circumstances(device) != before


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    ("around", "text"),
    [
        (nullcontext, ""),
        (lambda: torch.device("xla"), ""),
        (lambda: torch.autograd.set_detect_anomaly(True), "autograd looks for anomalies"),
        (Mode, "`Mode` may do something at every operation"),
        (save_on_cpu, "hooks of saved tensors may do something at every operation"),
    ],
)
def test_what_hinders_a_replay_is_named(around: Any, text: str) -> None:
    with around():
        assert hindrance() == text


def test_a_transform_hinders_a_replay() -> None:
    told = []

    def function(x: torch.Tensor) -> torch.Tensor:
        told.append(hindrance())
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    assert told == ["a transform of `torch.func` is active"] and hindrance() == ""
