"""The signs of zeros in results of operators whose operands hold zeros of both signs, against the CPU.

The CPU's sign counts where it is one: in float64 too (for operands of float32), and with operands that have gaps in
memory, which its vectorised kernels do not take.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .check import Verdict
from .entries import DTYPES, OF_CUDA, UNINITIALISED, Entry, database
from .operands import WIDE, moved

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]
VALUES = (0.0, -0.0, 1.0, 0.0, -0.0, -2.0, -0.0)

# The beginnings of the names of operators whose zeros have another sign than the CPU's, and why. The page on wrong
# results names the kinds.
DIFFER = {
    "the CPU gives either zero of two, by the place in memory": (
        "_foreach_max", "amax", "amin", "aminmax", "fmax", "fmin", "index_reduce_a", "max_binary",
        "max_reduction_no_dim", "maximum", "min_binary", "min_reduction_no_dim", "minimum", "_segment_reduce",
        "scatter_reduce_a",
    ),
    "the order of equal elements is free": ("kthvalue", "msort", "sort", "topk"),
    "terms are added and factors are joined in another order": (
        "_unsafe_masked_index_put_accumulate", "_upsample", "bmm_triton", "grid_sampler", "linspace",
        "native_group_norm", "native_layer_norm", "nn_functional_grid_sample", "nn_functional_group_norm",
        "nn_functional_instance_norm", "nn_functional_interpolate", "nn_functional_upsample",
    ),
    "a factorization or a transform takes its steps in another order": (
        "fft_", "linalg_", "lobpcg", "lu", "ormqr", "pca_lowrank", "qr", "geqrf", "stft", "svd", "symeig",
    ),
    "there is no such layout": ("sparse_", "to_sparse"),
}  # fmt: skip


def check_zeros(entry: Entry, most_samples: int) -> Verdict:
    """What differs for one operator and dtype: the first few places of each sample."""
    op = database()[entry.operator]
    verdict = Verdict(entry)
    if is_left_out(entry):
        return verdict
    for number, given in enumerate(_samples(op, DTYPES[entry.dtype], most_samples)):
        verdict.samples += 1
        failure = _differs(op.op, given)
        if failure:
            verdict.failures.append((f"sample {number}", failure))
    return verdict


def is_left_out(entry: Entry) -> bool:
    """Whether the signs of an operator's zeros are not compared."""
    names = (OF_CUDA, *(name for names in DIFFER.values() for name in names))
    return entry.operator.startswith(names) or database()[entry.operator].name in UNINITIALISED


def _samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Arguments]:
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype))
    for sample in samples[:: max(1, len(samples) // most)][:most]:
        coins = torch.Generator().manual_seed(0)

        def filled(leaf: Any, coins: torch.Generator = coins) -> Any:
            if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
                return leaf
            if not (leaf.is_floating_point() or leaf.is_complex()) or leaf.dtype.itemsize == 1:
                return leaf
            drawn = torch.randint(0, len(VALUES), (*leaf.shape, 2), generator=coins)
            parts = torch.tensor(VALUES, dtype=leaf.real.dtype)[drawn]
            whole = torch.view_as_complex(parts) if leaf.is_complex() else parts[..., 0]
            return whole.contiguous().to(leaf.dtype)

        yield pytree.tree_map(filled, (sample.input, sample.args, sample.kwargs))


def _differs(function: Callable[..., Any], given: Arguments) -> str:
    """Where the signs differ, in words; empty if nowhere, or the CPU does not take the operands."""
    forms = [given, moved(given, "cpu", WIDE), pytree.tree_map(_with_gaps, given)]
    found = []
    for form in forms:
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(_zeros(_called(function, form)))
        except Exception:  # what is refused has no sign
            if form is given:
                return ""
    again = _zeros(_called(function, given))
    if len(again) != len(found[0]) or any(not torch.equal(a, b) for a, b in zip(again, found[0], strict=True)):
        return ""  # drawn
    try:
        made = _zeros(_called(function, moved(given, "xla")))
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error)[:150]}"
    return _first_difference(made, found)


def _called(function: Callable[..., Any], given: Arguments) -> Any:
    tensor, args, kwargs = pytree.tree_map(_copied, given)
    return function(tensor, *args, **kwargs)


def _copied(leaf: Any) -> Any:
    """A copy with the same strides: operators in place write to it."""
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf.detach())


def _with_gaps(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided or not leaf.dim():
        return copy.copy(leaf)
    return torch.stack([leaf, leaf], -1)[..., 0]


def _zeros(result: Any) -> list[Tensor]:
    """For each result that may hold zeros: 1 at those with a minus, -1 at those without, 0 elsewhere."""
    found = []
    for leaf in pytree.tree_leaves(result):
        if (
            isinstance(leaf, Tensor)
            and leaf.layout is torch.strided
            and (leaf.is_floating_point() or leaf.is_complex())
        ):
            here = leaf.detach().cpu().resolve_conj().resolve_neg()
            here = torch.view_as_real(here) if here.is_complex() else here
            here = here.double() if here.dtype.itemsize == 1 else here
            found.append(torch.where(here == 0, here.signbit().int() * 2 - 1, 0))
    return found


def _first_difference(made: list[Tensor], found: list[list[Tensor]]) -> str:
    for number, (each, *expected) in enumerate(zip(made, *found, strict=False)):
        if any(other.shape != each.shape for other in expected):
            continue
        agreed = torch.stack([other == expected[0] for other in expected]).all(0)
        wrong = agreed & (each * expected[0] == -1)
        if wrong.any():
            place = wrong.nonzero()[0].tolist()
            sign = "-0" if expected[0][tuple(place)] > 0 else "0"
            return (
                f"result {number}: {int(wrong.sum())} of {wrong.numel()} zeros, the first at {place}, should be {sign}"
            )
    return ""
