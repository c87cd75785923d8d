"""Random programs of views, writes through views, reductions and arithmetic, run on two devices side by side.

A program is a list of commands; a command is a name and three small numbers, which the state of the machine turns into
tensors and arguments. So every list is a program, and Hypothesis can leave out any part of one that fails.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import torch_xla
from tests.support.interpreter import interpret
from tests.support.twins import shown
from tests.support.views import flat_index, geometry_of
from torch_xla._engine.compile import program as compiled
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.ir.value_spec import contiguous_stride
from torch_xla._engine.ir.view import Geometry, InternalOverlap, Overlap, has_internal_overlap, overlap_between
from torch_xla._engine.lowering.machinery.lower_call import lower

Command = tuple[str, int, int, int]

BASES = ((4,), (2, 3), (3, 2, 2), (), (0, 2), (6,))
DTYPES = (torch.float32, torch.int64, torch.float32, torch.int32)
MODULUS = 97  # keeps all numbers exact in float32


def dim_of(x: Tensor, a: int) -> int:
    return a % max(x.dim(), 1)


def as_strided(x: Tensor, a: int, b: int) -> Tensor:
    size = ((2, 2), (3,), (2, 1, 2), ())[a % 4]
    stride = ((1, 2), (2,), (3, 1, 1), ())[a % 4] if b % 2 else ((2, 1), (1,), (1, 5, 2), ())[a % 4]
    return x.as_strided(size, stride, b)


VIEWS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "transpose": lambda x, a, b: x.transpose(dim_of(x, a), dim_of(x, b)),
    "slice": lambda x, a, b: x.movedim(dim_of(x, a), 0)[b % 3 :: 1 + a % 2].movedim(0, dim_of(x, a)),
    "select": lambda x, a, b: x.select(dim_of(x, a), -1 if b % 2 else 0),
    "unsqueeze": lambda x, a, b: x.unsqueeze(dim_of(x, a)),
    "squeeze": lambda x, a, b: x.squeeze(),
    "expand": lambda x, a, b: x.unsqueeze(0).expand(2, *x.shape),
    "flatten": lambda x, a, b: x.view(-1),
    "fold": lambda x, a, b: x.view(2, -1),
    "reshape": lambda x, a, b: x.reshape(-1, 2),
    "unfold": lambda x, a, b: x.unfold(dim_of(x, a), 2, 1 + b % 2),
    "diagonal": lambda x, a, b: x.diagonal(b % 3 - 1, 0, -1),
    "as_strided": as_strided,
    "detach": lambda x, a, b: x.detach(),
    "chunk": lambda x, a, b: x.chunk(2, dim_of(x, a))[-1],
    "transpose_": lambda x, a, b: x.detach().transpose_(0, -1),
}

NEW: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "add": lambda x, y, b: x + y,
    "sub": lambda x, y, b: x - b,
    "mul": lambda x, y, b: (x * y).remainder(MODULUS),
    "scale": lambda x, y, b: x * b,
    "sum": lambda x, y, b: x.sum(dim_of(x, b)).remainder(MODULUS),
    "total": lambda x, y, b: x.sum(),
    "maximum": lambda x, y, b: torch.maximum(x, y),
    "amax": lambda x, y, b: x.amax(dim_of(x, b)),
    "where": lambda x, y, b: torch.where(x > b, x, y),
    "cat": lambda x, y, b: torch.cat([x, y], dim_of(x, b)),
    "clone": lambda x, y, b: x.clone(),
    "contiguous": lambda x, y, b: x.contiguous(),
    "like": lambda x, y, b: torch.full_like(x, b),
    "flip": lambda x, y, b: x.flip(dim_of(x, b)),
    "cumsum": lambda x, y, b: x.cumsum(dim_of(x, b)).remainder(MODULUS),
    "compare": lambda x, y, b: (x > y).to(x.dtype),
    "index": lambda x, y, b: x[[0, b % 2]],
    "product": lambda x, y, b: (x @ y).remainder(MODULUS),
    "to double": lambda x, y, b: x.double().to(x.dtype),
}

WRITES: dict[str, Callable[[Tensor, Tensor, int], object]] = {
    "add_ number": lambda x, y, b: x.add_(b),
    "add_": lambda x, y, b: x.add_(y),
    "sub_": lambda x, y, b: x.sub_(y, alpha=2),
    "mul_": lambda x, y, b: x.mul_(b % 3),
    "copy_": lambda x, y, b: x.copy_(y),
    "fill_": lambda x, y, b: x.fill_(b),
    "zero_": lambda x, y, b: x.zero_(),
    "clamp_": lambda x, y, b: x.clamp_(-b, b),
    "masked_fill_": lambda x, y, b: x.masked_fill_(x > b, b),
    "set row": lambda x, y, b: x.__setitem__(0, b),
    "set by list": lambda x, y, b: x.__setitem__([0, -1], b),
    "set mask": lambda x, y, b: x.__setitem__(x < b, -b),
    "set slice": lambda x, y, b: x.__setitem__(slice(1, None), y),
    "cumsum_": lambda x, y, b: x.cumsum_(dim_of(x, b)),
    "out": lambda x, y, b: torch.add(y, b, out=x),
    "from host": lambda x, y, b: x.copy_(torch.full(x.shape, b)),
    "foreach": lambda x, y, b: torch._foreach_add_([x], [y]),
}

OTHERS = ("read", "sync", "drop", "base", "set_", "resize_", "data")

commands: st.SearchStrategy[Command] = st.tuples(
    st.sampled_from([*VIEWS, *WRITES, *VIEWS, *WRITES, *NEW, *OTHERS]),
    st.integers(0, 7),
    st.integers(0, 7),
    st.integers(0, 5),
)
programs = st.lists(commands, min_size=1, max_size=14)


@dataclass
class Machine:
    """The tensors of one run of a program."""

    device: str
    tensors: list[Tensor] = field(default_factory=list)

    def pick(self, index: int) -> Tensor:
        return self.tensors[index % len(self.tensors)]

    def base(self, i: int, j: int) -> Tensor:
        size = BASES[i % len(BASES)]
        host = torch.arange(torch.Size(size).numel(), dtype=DTYPES[j % len(DTYPES)]).reshape(size)
        return host.clone() if self.device == "cpu" else host.to(self.device)

    def run(self, command: Command) -> Any:
        """Return the result or the error of the command, in a form that can be compared."""
        name, i, j, b = command
        try:
            return self._run(name, i, j, b)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            return type(error).__name__, re.sub(r"xla(\w+)Type", r"torch.\1Tensor", str(error))

    def _run(self, name: str, i: int, j: int, b: int) -> Any:
        x, y = self.pick(i), self.pick(j)
        if name in VIEWS:
            self.tensors.append(VIEWS[name](x, j, b))
        elif name in NEW:
            self.tensors.append(NEW[name](x, y, b))
        elif name in WRITES:
            WRITES[name](x, y, b)
        elif name == "read":
            return x.tolist(), x._version
        elif name == "sync":
            torch_xla.sync()
        elif name == "drop" and len(self.tensors) > 1:
            del self.tensors[i % len(self.tensors)]
        elif name == "base":
            self.tensors.append(self.base(i, j))
        elif name == "set_":
            x.set_(y)
        elif name == "resize_" and x.storage_offset() + b <= x.untyped_storage().nbytes() // x.element_size():
            x.resize_(b)
        elif name == "data":
            x.data = y
        return None


def is_settled(machine: Machine, command: Command) -> bool:
    """Whether PyTorch defines what the command does: not where a write meets memory in an order it leaves open."""
    name, i, j, _ = command
    if name not in WRITES:
        return True
    x, y = machine.pick(i), machine.pick(j)
    ours, theirs = geometry_of(x), geometry_of(y)
    if name == "out" and x.shape != y.shape and _shares_memory(x, y):
        # PyTorch looks for overlaps before it gives `out` its new size.
        ours = Geometry(theirs.size, contiguous_stride(theirs.size), ours.offset)
        return ours == theirs or not np.intersect1d(flat_index(ours), flat_index(theirs)).size
    if has_internal_overlap(ours) is InternalOverlap.YES:
        return True
    places = flat_index(ours).ravel()
    if len(np.unique(places)) < len(places):
        return False
    if not _shares_memory(x, y) or overlap_between(ours, theirs) is not Overlap.TOO_HARD:
        return True
    return ours.same_elements(theirs) or not np.intersect1d(places, flat_index(theirs).ravel()).size


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def seen(tensor: Tensor) -> dict[str, Any]:
    """Return the properties of a tensor, without strides along which PyTorch's kernels never step."""
    told = shown(tensor, versions=True, strides=True)
    told["stride"] = tuple(s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1 and tensor.numel())
    return told


def check_program(program: list[Command]) -> None:
    """Runs a program on both devices and compares everything that can be seen of it, command by command."""
    cpu, xla = Machine("cpu"), Machine("xla")
    for machine in (cpu, xla):
        machine.tensors += [machine.base(0, 0), machine.base(1, 1), machine.base(2, 2)]
    for command in program:
        if not is_settled(cpu, command):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, found = cpu.run(command), xla.run(command)
        assert found == expected, f"{command}: {found} instead of {expected}"
        for theirs, ours in zip(cpu.tensors, xla.tensors, strict=True):
            expected, found = seen(theirs), seen(ours)
            assert found == expected, f"{command}: {found} instead of {expected}"
    torch_xla.sync()
    for index, (theirs, ours) in enumerate(zip(cpu.tensors, xla.tensors, strict=True)):
        assert ours.tolist() == theirs.tolist(), f"tensor {index}"


# The functions of single operations, by plan and numbers: their identity is what the interpreter knows them by.
_functions: dict[Any, Callable[..., Any]] = {}


def _operation_by_operation(graph: Graph, numbers: Sequence[float | int], arrays: Sequence[jax.Array]) -> list[Any]:
    values: list[Any] = list(arrays[: len(graph.inputs)])
    keys = jax.random.wrap_key_data(arrays[-1], impl="rbg") if graph.draws else None
    for operation in graph.operations:
        plan, first = operation.plan, operation.first_number
        own = tuple(numbers[first : first + len(plan.numbers)])
        operands = [values[slot] for slot in operation.operands]
        if plan.draws:
            values += lower(plan, [jax.numpy.asarray(o) for o in operands], list(own), operation.key(keys))
            continue
        key = plan, own, tuple(map(str, own))  # -0.0 and 0.0 are equal
        function = _functions.get(key)
        if function is None:
            function = _functions[key] = partial(_lowered, plan, own)
        values += interpret(function, operands)
    return [values[slot] for slot in graph.outputs]


def _lowered(plan: Plan, numbers: tuple[float | int, ...], *operands: Any) -> list[Any]:
    return lower(plan, list(operands), list(numbers), None)


@contextmanager
def interpreted() -> Iterator[None]:
    """Run the programs of the engine operation by operation, which saves their compilation.

    Donated buffers are deleted, so that reading them raises.
    """

    def compile_nothing(self: compiled.Program, packed: bytes, numbers: Any) -> compiled.Ready:
        def start(buffers: Sequence[jax.Array], *vectors: Any) -> Iterator[list[jax.Array]]:
            arrays = [*buffers, *(vector for vector in vectors if vector is not None)]
            with jax.enable_x64(True):
                results = [
                    jax.device_put(np.array(result), self.target.device)
                    for result in _operation_by_operation(self.graph, numbers, arrays)
                ]
            for index in self.donated:
                arrays[index].delete()
            return iter([results])

        return compiled.Ready(None, start, [], [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled.Program, "_compile", compile_nothing)
        patch.setattr(compiled.Program, "compile_for", lambda self, numbers: None)
        yield
