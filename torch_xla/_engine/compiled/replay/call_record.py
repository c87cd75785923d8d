"""The record of one watched call, and whether two calls did the same."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...step.step import Schedule
from ...tensor.host_known_values import Asked
from .accessed_names import Reads
from .guards import Change, Reached
from .output_recipe import Returned
from .scalar_program import HostPart

# The name of a gradient in messages.
GRADIENT = "a gradient"


@dataclass
class OuterMemory:
    """Memory that outlives the call: an argument, something the function sees, or a gradient."""

    tensor: torch.Tensor
    path: str
    argument: int = -1  # which of the argument tensors; -1: none
    leaf: int = -1  # the leaf whose gradient alone shows this memory; -1: none


@dataclass
class VersionChange:
    """How far the call stepped a version counter: of an argument, of a leaf's gradient, or of another tensor."""

    tensor: torch.Tensor
    argument: int = -1
    leaf: int = -1
    count: int = 0


@dataclass
class Facts:
    """The record of one watched call."""

    reasons: list[str] = field(default_factory=list)  # why it cannot be replayed
    differences: list[Change] = field(default_factory=list)
    places: list[OuterMemory] = field(default_factory=list)
    reached: Reached | None = None
    leaves: list[torch.Tensor] = field(default_factory=list)
    had_gradient: list[bool] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)  # what became of each leaf's: none, new, the same
    code: Sequence[object] = ()
    numbers: list[Any] = field(default_factory=list)
    draws: int = 0
    sources: dict[int, Any] = field(default_factory=dict)  # input slot → a place, or the constant there
    sharing: list[tuple[int, ...]] = field(default_factory=list)  # places that held one value before the call
    sinks: dict[int, int] = field(default_factory=dict)  # place → slot
    returned: Returned | None = None
    new: dict[Hashable, int] = field(default_factory=dict)  # memory that only the result has → slot
    written: list[VersionChange] = field(default_factory=list)
    reads: Reads = field(default_factory=Reads)
    host: HostPart | None = None  # what it computed on the host
    checked: dict[int, set[Asked]] = field(default_factory=dict)  # argument → what it asked of numbers the host knows
    only_learned: bool = False  # it looked at what was not known before the call: more is not known of it
    schedule: Schedule | None = None

    def release(self) -> None:
        """Release the memory of the call; what another call is compared with stays."""
        self.places, self.leaves, self.written = [], [], []
        self.differences, self.reached = [], None
        if self.host is not None:
            self.host.release()


def same(one: Facts, other: Facts) -> str:
    """Return why two calls are not the same, or nothing."""
    if one.code != other.code:
        return "it records another program from call to call"
    if one.host is not None or other.host is not None:
        difference = one.host.differs(other.host) if one.host is not None else "what it computes on the host is new"
        if difference:
            return difference
    computed = one.host.numbers if one.host is not None else ()
    for index, (old, new) in enumerate(zip(one.numbers, other.numbers, strict=True)):
        if index in computed:
            continue
        if type(old) is not type(new) or repr(old) != repr(new):
            return f"it computes with a Python number that was {old!r} and is {new!r}: keep it in a tensor"
    if one.draws != other.draws or one.sources.keys() != other.sources.keys():
        return "it records another program from call to call"
    for old, new in zip(one.sources.values(), other.sources.values(), strict=True):
        if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
            if old.tobytes() != new.tobytes():
                return "it uploads something else at every call: upload before the call, and pass it as an argument"
        elif type(old) is not type(new) or old != new:
            return "it reads other memory from call to call"
    if one.sharing != other.sharing:
        return "what it sees shares memory before the one call and not before the other"
    if one.had_gradient != other.had_gradient or one.gradients != other.gradients:
        return "gradients were there before the one call and not before the other"
    assert one.returned is not None and other.returned is not None
    if one.returned.structure != other.returned.structure or one.new.keys() != other.new.keys():
        return "it returns something else from call to call"
    return "" if one.sinks == other.sinks else "it writes to other memory from call to call"
