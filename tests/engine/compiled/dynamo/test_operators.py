"""PyTorch's operator database inside `torch.compile(backend="openxla")`: values and gradients of the CPU.

Each time one entry of 96, one of eight with `make test-slow`, all others with `pytest -m exhaustive`.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

QUICK = 96
SLOW = 16
# Their results are random or uninitialised, or cannot be on the device at all.
OPEN = (
    "bernoulli", "cauchy", "empty", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand",
    "rrelu", "uniform", "lowrank", "dropout", "sparse", "chalf", "eigh", "eig", "svd", "qr", "householder", "ormqr",
    "multi_head_attention", "as_strided", "jiterator",
)  # fmt: skip


def cases() -> list[Any]:
    """Every entry that the CPU has in float32; one of 96 is quick, one of eight slow."""
    chosen = [
        entry
        for entry in op_db
        if torch.float32 in entry.supported_dtypes("cpu") and not any(word in entry.name for word in OPEN)
    ]
    return [pytest.param(entry, id=entry.formatted_name, marks=marks(index)) for index, entry in enumerate(chosen)]


def marks(index: int) -> list[pytest.MarkDecorator]:
    """Neighbours in the database are variants of each other, so every set takes of all."""
    if index % QUICK == 5:
        return []
    return [pytest.mark.slow if index % SLOW == 0 else pytest.mark.exhaustive]


def on(device: str, nested: Any) -> Any:
    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().to(device).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, nested)


def outcome(function: Callable[..., Any], arguments: Any) -> tuple[list[Any], list[Any]]:
    """The results and the gradients of their sum."""
    results = pytree.tree_leaves(function(*arguments))
    tensors = [each for each in results if isinstance(each, Tensor)]
    differentiable = [each for each in tensors if each.requires_grad]
    leaves = [each for each in pytree.tree_leaves(arguments) if isinstance(each, Tensor) and each.requires_grad]
    gradients: Any = []
    if differentiable and leaves:
        total = sum(each.abs().sum() if each.is_complex() else each.sum() for each in differentiable)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]
    return [each.detach().cpu() if isinstance(each, Tensor) else each for each in results], [
        None if each is None else each.cpu() for each in gradients
    ]


def check(found: list[Any], expected: list[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        finite = theirs[theirs.isfinite()].to(torch.complex128).abs() if isinstance(theirs, Tensor) else torch.zeros(0)
        # Measured by the largest element: a small one may be the difference of two large ones.
        largest = float(finite.max()) if finite.numel() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * max(1.0, largest), equal_nan=True)


@pytest.mark.parametrize("entry", cases())
def test_a_compiled_operator_gives_what_the_cpu_gives(entry: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the operators themselves
        samples = list(entry.sample_inputs("cpu", torch.float32, requires_grad=entry.supports_autograd))
        for sample in samples[:: max(1, len(samples) // 2)][:2]:
            arguments = (sample.input, *sample.args)
            expected = outcome(lambda *a, kwargs=sample.kwargs: entry.op(*a, **kwargs), on("cpu", arguments))
            kwargs = on("xla", sample.kwargs)
            torch._dynamo.reset()
            compiled = torch.compile(lambda *a, kwargs=kwargs: entry.op(*a, **kwargs), backend="openxla")
            found = outcome(compiled, on("xla", arguments))
            for ours, theirs in zip(found, expected, strict=True):
                check(ours, theirs)
