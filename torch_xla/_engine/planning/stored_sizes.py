"""The bytes that a device stores of values between programs, as its compiler lays them out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ..atomic import uncollected
from ..compile.xla_compile import compiled_function
from ..runtime.device_assignment import Target
from .hlo_parser import Module
from .hlo_parser import module as parse_module

# The name of a dtype in XLA's text, where it is not its letter and its bits.
_NAMES = {"bool": "pred", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128"}

Kind = tuple[str, tuple[int, ...]]


def kind_of(shape: Sequence[int], dtype: Any) -> Kind:
    """Return how XLA's text names an array."""
    named = np.dtype(dtype).name
    short = _NAMES.get(named) or named.replace("uint", "u").replace("int", "s").replace("float", "f")
    return short.replace("_", ""), tuple(shape)


@dataclass(slots=True)
class StoredSizes:
    """Bytes of each kind of array, learnt from compiled programs."""

    known: dict[Kind, int] = field(default_factory=dict)

    def learn(self, modules: Iterable[Module]) -> None:
        """Note the inputs and results of programs."""
        for module in modules:
            for leaf in module.stored:
                if not leaf.is_on_chip:
                    self.known[leaf.dtype, leaf.dims] = leaf.stored_bytes

    @uncollected
    def ask(self, arrays: Iterable[Any], target: Target) -> None:
        """Compile a program that returns its inputs, where arrays of such kinds were not seen."""
        if target.platform != "tpu":
            return  # without tiles
        device = jax.sharding.SingleDeviceSharding(target.device)
        missing = {}
        for array in arrays:
            shape = array.sharding.shard_shape(array.shape)
            if array.dtype == np.complex128:
                continue  # a TPU has none: what holds it is not the planned step
            if kind_of(shape, array.dtype) not in self.known:
                missing[kind_of(shape, array.dtype)] = jax.ShapeDtypeStruct(shape, array.dtype, sharding=device)
        if missing:
            with jax.enable_x64(True):
                program = compiled_function(lambda *given: given, tuple(missing.values()), target)
            self.learn([parse_module(program.as_text() or "")])

    def of(self, shape: Sequence[int], dtype: Any) -> int:
        """Return the bytes of an array on one device: those of its elements, if nothing else is known."""
        plain = math.prod(shape) * np.dtype(dtype).itemsize
        return self.known.get(kind_of(shape, dtype), plain)

    def of_array(self, array: Any) -> int:
        """Return the bytes that each device has of an array."""
        return self.of(array.sharding.shard_shape(array.shape), array.dtype)
