"""Runs a program on both devices, compares what it leaves, and shortens one that fails."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import torch_xla
from tests.opinfo.compare import Differs, check_shape
from torch_xla._engine.ir.tape import Tape
from torch_xla._engine.tensor.device import existing_devices

from . import settled
from .program import Line, Program, State, on_the_cpu, run

# Chains of rounded operations in a low precision: relative, and relative to the largest element.
TOLERANCES = {
    torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 2e-3, torch.complex64: 2e-3,
    torch.float16: 3e-2, torch.bfloat16: 2e-1,
}  # fmt: skip
# How much farther from the truth in float64 than PyTorch's own result ours may be.
SLACK = 8.0


@dataclass(frozen=True)
class Failure:
    """A program that does something else on `xla`."""

    program: Program
    text: str

    @property
    def kind(self) -> str:
        """Return a key for failures with one cause: the failed call without its operands."""
        return re.sub(r"t?-?\d+(\.\d+)?", "_", self.program.lines[-1].source + self.text)[:60]

    def script(self) -> str:
        """The program as one that a person can run."""
        body = []
        for line in self.program.lines:
            if line.raises:
                body += ["try:", f"    {line.text}", f"except {line.raises} as error:", "    print(error)"]
            else:
                body.append(line.text)
        head = "import torch\nimport torch_xla\n\ndevice, sync, read = 'xla', torch_xla.sync, torch.Tensor.cpu\n"
        if not self.program.gradients:
            head += "torch.set_grad_enabled(False)\n"
        return f"{head}{chr(10).join(body)}\n# {self.text}"


def on_xla(program: Program) -> State:
    """The program on the device."""
    return run(program, "xla", torch_xla.sync)


def difference(program: Program) -> str:
    """Return the difference on `xla`, or an empty text."""
    theirs = on_the_cpu(program)
    if theirs.failed_at >= 0:
        return ""  # no program: the shortened one is not valid
    ours = on_xla(program)
    if ours.failed_at >= 0:
        error = ours.error
        return f"`{program.lines[ours.failed_at].text}` {type(error).__name__}: {str(error)[:300]}"
    try:
        torch_xla.sync()
        compare(ours, theirs, lambda: _truth(program))
    except Differs as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def compare(ours: State, theirs: State, truth: Callable[[], State | None]) -> None:
    """Raises `Differs` unless two runs left the same: values, form, memory, versions, gradients, what was read."""
    for index, (found, expected) in enumerate(zip(ours.read, theirs.read, strict=True)):
        check_shape(found, expected, f"read {index}")
        _check_elements(found, expected, partial(_true_read, truth, index), f"read {index}")
    for name, expected in theirs.tensors.items():
        found = ours.tensors[name]
        if found.device.type != "xla":
            raise Differs("form", f"{name} is on {found.device}")
        # A product may be the lazy conjugate of another one or not.
        if found.is_conj() != expected.is_conj():
            found, expected = found.resolve_conj(), expected.resolve_conj()
        check_shape(found, expected, name)
        for what, seen in SEEN.items():
            if (ours_seen := _look(seen, found)) != (theirs_seen := _look(seen, expected)):
                raise Differs("form", f"{name}: {what} {ours_seen}, not {theirs_seen}")
        written, expected_writes = (s.tensors[name]._version - s.new_versions[name] for s in (ours, theirs))
        if written != expected_writes:
            raise Differs("form", f"{name}: written {written} times, not {expected_writes}")
        _check_elements(found, expected, partial(_true, truth, name), name)
        if _look(SEEN["has a gradient"], expected) is True:
            assert found.grad is not None and expected.grad is not None
            check_shape(found.grad, expected.grad, f"{name}.grad")
            _check_elements(found.grad, expected.grad, partial(_true_gradient, truth, name), f"{name}.grad")
    shared, expected_shared = (_sharing(state.tensors) for state in (ours, theirs))
    if shared != expected_shared:
        raise Differs("form", f"memory is shared by {shared}, not {expected_shared}")


SEEN: dict[str, Callable[[Tensor], object]] = {
    "storage offset": lambda t: t._is_view() and t.storage_offset(),
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "has a grad_fn": lambda t: t.grad_fn is not None,
    "has a gradient": lambda t: t.is_leaf and t.grad is not None,
}


def _look(seen: Callable[[Tensor], object], tensor: Tensor) -> object:
    try:
        return seen(tensor)
    except RuntimeError as error:  # one of several views made at once, of a tensor that was written to since
        return type(error)


def _sharing(tensors: dict[str, Tensor]) -> list[list[str]]:
    """The names of tensors, in groups of those on one storage."""
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    return sorted(groups.values())


def _true(truth: Callable[[], State | None], name: str) -> Tensor | None:
    state = truth()
    return state.tensors[name] if state is not None else None


def _true_gradient(truth: Callable[[], State | None], name: str) -> Tensor | None:
    tensor = _true(truth, name)
    return tensor.grad if tensor is not None else None


def _true_read(truth: Callable[[], State | None], index: int) -> Tensor | None:
    state = truth()
    return state.read[index] if state is not None else None


def _truth(program: Program) -> State | None:
    """The program in float64, if it is one then."""
    lines = [Line(_in_double(line.source), line.name, line.raises) for line in program.lines]
    if any(".view(torch." in line.source for line in lines):
        return None
    state = on_the_cpu(Program(tuple(lines), program.gradients))
    return None if state.failed_at >= 0 else state


def _in_double(source: str) -> str:
    source = re.sub(r"torch\.(float32|float16|bfloat16)\b", "torch.float64", source)
    source = source.replace("torch.complex64", "torch.complex128")
    return re.sub(r"\.(float|half)\(\)", ".double()", source)


def _check_elements(found: Tensor, expected: Tensor, truth: Callable[[], Tensor | None], name: str) -> None:
    found, expected = (settled.plain(t).cpu() for t in (found, expected))
    tolerance = TOLERANCES.get(expected.dtype)
    if not expected.numel() or (tolerance is None and torch.equal(found, expected)):
        return
    if tolerance is not None:
        scale = expected.abs().double().nan_to_num(0, 0, 0).max().item()
        if torch.allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, scale), equal_nan=True):
            return
        exact = truth()
        if exact is not None and exact.shape == expected.shape and _as_near(found, expected, settled.plain(exact)):
            return
    raise Differs("value", f"{name} is {found.tolist()}, not {expected.tolist()}"[:400])


def _as_near(found: Tensor, expected: Tensor, truth: Tensor) -> bool:
    """Whether ours is about as far from the truth as PyTorch's own: the program is ill conditioned."""
    our_error, their_error = ((t.to(truth.dtype) - truth).abs() for t in (found, expected))
    same = (found == expected) | (found.isnan() & expected.isnan())
    worst = their_error.nan_to_num(torch.inf).max()
    return bool((same | (our_error <= SLACK * worst)).all())


def shortened(program: Program, text: str) -> Failure:
    """The shortest program that still fails, found by leaving lines out."""
    best, told = program, text
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(best.lines))):
            shorter = _without(best, index)
            found = difference(shorter) if shorter.lines else ""
            forget()
            if found:
                best, told, changed = shorter, found, True
                break
    return Failure(best, told)


def forget() -> None:
    """Drops what a failed program left recorded: it may be what cannot run."""
    for device in existing_devices():
        device.tape = Tape()


def _without(program: Program, index: int) -> Program:
    """The program without one line and all that need what it makes."""
    lines = program.lines
    gone = {lines[index].name} - {""}
    kept = list(lines[:index])
    for line in lines[index + 1 :]:
        if any(line.uses(name) for name in gone):
            gone |= {line.name} - {""}
        else:
            kept.append(line)
    return Program(tuple(kept), program.gradients)
