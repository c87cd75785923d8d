"""Import computations that come as HLO, as functions of arrays."""

from typing import Any

import jax

from ..compat.names import jax as private
from .stablehlo_modules import exported as exported_module


class FromHlo:
    """The computation of an HLO module: a function of arrays."""

    def __init__(self, name: str, exported: Any) -> None:
        self.name = self.__name__ = name
        self.parameters = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in exported.in_avals]
        self._exported = exported

    def __call__(self, *arrays: Any) -> Any:
        if len(arrays) != len(self.parameters):
            raise TypeError(f"computation {self.name!r} takes {len(self.parameters)} values; got {len(arrays)}")
        found = tuple(jax.tree.leaves(self._exported.call(*arrays)))
        return found[0] if len(found) == 1 else found


def from_hlo(name: str, proto: bytes) -> FromHlo:
    """Return the computation of a serialised `HloModuleProto`. Raises `ValueError` for bytes that are none."""
    return FromHlo(name, exported_module(private.stablehlo_of(proto)))
