"""Runs a program on both devices, compares what it leaves, and shortens one that fails."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import torch_xla
from tests.opinfo.compare import Differs, check_shape

from .program import Line, State, on_the_cpu, run

# Chains of rounded operations in a low precision: relative, and relative to the largest element.
TOLERANCES = {
    torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 2e-3, torch.complex64: 2e-3,
    torch.float16: 3e-2, torch.bfloat16: 2e-1,
}  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A program that does something else on `xla`."""

    lines: tuple[Line, ...]
    text: str

    def script(self) -> str:
        """The program as one that a person can run."""
        body = []
        for line in self.lines:
            if line.raises:
                body += ["try:", f"    {line.text}", f"except {line.raises} as error:", "    print(error)"]
            else:
                body.append(line.text)
        head = "import torch\nimport torch_xla\n\ndevice, sync, read = 'xla', torch_xla.sync, torch.Tensor.cpu\n"
        return f"{head}{chr(10).join(body)}\n# {self.text}"


def on_xla(lines: list[Line]) -> State:
    """The program on the device."""
    return run(lines, "xla", torch_xla.sync, torch.Tensor.cpu)


def difference(lines: list[Line]) -> str:
    """What is different on `xla`; empty if nothing is."""
    theirs = on_the_cpu(lines)
    if theirs.failed_at >= 0:
        return ""  # no program: the shortened one is not valid
    ours = on_xla(lines)
    if ours.failed_at >= 0:
        return f"`{lines[ours.failed_at].text}` {type(ours.error).__name__}: {str(ours.error)[:300]}"
    try:
        torch_xla.sync()
        for name, expected in theirs.tensors.items():
            found = ours.tensors[name]
            if found.device.type != "xla":
                raise Differs("form", f"{name} is on {found.device}")
            check_shape(found, expected, name)
            _check_elements(found, expected, name)
    except Differs as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def _check_elements(found: Tensor, expected: Tensor, name: str) -> None:
    found, expected = (t.detach().cpu().resolve_conj().resolve_neg() for t in (found, expected))
    tolerance = TOLERANCES.get(expected.dtype)
    if tolerance is None:
        same = torch.equal(found, expected)
    else:
        largest = expected.abs().double().nan_to_num(0, 0, 0).max().item() if expected.numel() else 0.0
        same = torch.allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)
    if not same:
        raise Differs("value", f"{name} is {found.tolist()}, not {expected.tolist()}"[:400])


def shortened(lines: list[Line], text: str) -> Failure:
    """The shortest program that still fails, found by leaving lines out."""
    best, told = list(lines), text
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(best))):
            shorter = _without(best, index)
            found = difference(shorter) if shorter else ""
            if found:
                best, told, changed = shorter, found, True
                break
    return Failure(tuple(best), told)


def _without(lines: list[Line], index: int) -> list[Line]:
    """The program without one line and all that need what it makes."""
    gone = {lines[index].name} - {""}
    kept = lines[:index]
    for line in lines[index + 1 :]:
        if any(line.uses(name) for name in gone):
            gone |= {line.name} - {""}
        else:
            kept.append(line)
    return [replace(line) for line in kept]


def check(lines: list[Line]) -> Failure | None:
    """The failure of a program, shortened, or `None`."""
    text = difference(lines)
    return shortened(lines, text) if text else None
