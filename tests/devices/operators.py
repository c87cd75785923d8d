"""PyTorch's operator database, compiled several operators to a program."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.devices.case import Case


def operators(dtype: torch.dtype = torch.float32) -> Iterator[Case]:
    """Each operator of the database, with its first sample that has elements."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        samples = [*info.sample_inputs("cpu", dtype, requires_grad=False)]
        if not samples:
            continue
        sample = next(filter(_has_elements, samples), samples[0])
        name = f"{info.name}.{info.variant_test_name}".rstrip(".")
        try:
            moved = sample.transform(lambda x: x.to("xla") if isinstance(x, torch.Tensor) else x)
        except NotImplementedError as error:  # such as a sparse tensor
            yield Case(name, partial(_refused, error))
            continue

        def step(op: Any = info.op, given: Any = moved) -> Any:
            return op(given.input, *given.args, **given.kwargs)

        yield Case(name, step)


def _has_elements(sample: Any) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _refused(error: Exception) -> None:
    raise error


class Together:
    """The steps of several cases as one. A case that raises while it is recorded does not disturb the others."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases
        self.raised: set[str] = set()

    def __call__(self) -> list[Any]:
        """Run each step and return the results; the names of the cases that raise are in `raised`."""
        results = []
        for case in self.cases:
            try:
                results.append(case.step())
            except Exception:  # a plan refuses to read, an operator may refuse anything
                self.raised.add(case.name)
        return results


def failures(cases: list[Case], compiled: Callable[[Case], str]) -> dict[str, str]:
    """Return what `compiled` says of the cases that fail, by their names. Compile them together if that is possible.

    Cases that cannot be compiled together are compiled alone, so that the failing ones among them are known.
    """
    together = Together(cases)
    if len(cases) > 1 and not compiled(Case(", ".join(case.name for case in cases), together)):
        cases = [case for case in cases if case.name in together.raised]
    said = {case.name: compiled(case) for case in cases}
    return {name: text for name, text in said.items() if text}
