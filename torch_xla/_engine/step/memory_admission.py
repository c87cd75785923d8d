"""Check before a program's first run whether the device has enough free memory.

A program takes the buffers it is given away when it starts, and on the host there is no allocator that would refuse: a
process that takes too much is killed. One that is refused here has not begun, and every tensor is as it was.
"""

from collections.abc import Sequence

from .. import config
from ..compile.program import Program
from ..errors import OutOfMemory
from ..metrics.human_units import size
from ..metrics.observers import observers
from ..runtime import device_memory
from ..runtime.device_assignment import Target

ADVICE = (
    "Use a smaller batch, checkpoint activations (torch.utils.checkpoint) or drop references to tensors you no longer "
    "need; torch_xla.debug.plan(step) tells what would help."
)

# Accelerate, and so Transformers, choose a smaller batch where a RuntimeError has the second word, the third and a dot.
NO_MEMORY = "XLA is out of memory. "

_NOTHING_STARTED = (
    "Nothing was started, and what the step wrote to tensors is undone: every tensor is as it was, and the step can be "
    "tried again."
)


def explain(program: object, numbers: Sequence[float | int]) -> str:
    """Describe the largest living tensors, and the largest values that a program computes; needs an observer."""
    return observers.explain_memory(program, numbers) if observers.explain_memory is not None else ""


def is_left(needed: int, target: Target) -> bool:
    """Return whether each device of this process has `needed` bytes left, as far as the platform reports it."""
    return not config.checks_memory() or needed * _sharing(target) <= left(target)


def left(target: Target) -> int:
    """Return the bytes left on the fullest device of this process; on the host, those of all devices together."""
    if target.is_host:
        return device_memory.available() + device_memory.swappable()
    found = [device_memory.usage(device) for device in target.local]
    return min((usage.limit - usage.used for usage in found if usage.limit), default=1 << 62)


def _sharing(target: Target) -> int:
    """Return how many devices share the memory of the host."""
    return len(target.local) if target.is_host and target.is_spread else 1


def refusal(program: Program, numbers: Sequence[float | int], step: int, origin: str) -> OutOfMemory:
    """Return the error of a program for which there is no room; `origin` says where it comes from."""
    sizes, target = program.sizes_for(numbers), program.target
    assert sizes is not None  # only what XLA has reported was found too large
    each = f" on each of {len(target.devices)} devices" if len(target.devices) > 1 else ""
    needed = f"{size(program.allocates)}{each}"
    parts = f"results {size(sizes.outputs - sizes.aliased)}, intermediates {size(sizes.intermediate)}"
    return OutOfMemory(
        f"{NO_MEMORY}There is no room for the program of step {step} on {target.name}: it needs {needed} beside what "
        f"lives already ({parts}), and {size(left(target))} are left.\n{ADVICE}\n{_NOTHING_STARTED}\n"
        f"{explain(program, numbers)}{origin}"
    )


def oversized_refusal(program: Program, step: int, origin: str) -> OutOfMemory:
    """Return the error of a program that needs little memory, but has a value that is far larger than the memory."""
    return OutOfMemory(
        f"{NO_MEMORY}There is no room for a value in the program of step {step} on {program.target.name}: "
        f"{program.oversized}. Computed in parts, it would take too long.\n{ADVICE}\n{_NOTHING_STARTED}\n{origin}"
    )
