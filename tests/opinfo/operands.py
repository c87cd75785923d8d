"""The operands of a call on another device, in a wider or narrower dtype, or a rounding away from where they were."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Dtypes = dict[torch.dtype, torch.dtype]

WIDE: Dtypes = {
    torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip
NARROW: Dtypes = {torch.float64: torch.float32, torch.complex128: torch.complex64}


@dataclass
class Nudge:
    """Moves numbers up or down by about a rounding of their dtype, which becomes another one if `dtypes` says so."""

    seed: int
    dtypes: Dtypes
    _coins: torch.Generator = field(default_factory=torch.Generator, repr=False)

    def __post_init__(self) -> None:
        self._coins.manual_seed(self.seed)

    def __call__(self, tensor: Tensor) -> Tensor:
        """The same tensor elsewhere; one of whole numbers or truth values stays."""
        if tensor.is_complex():
            return torch.view_as_complex(self(torch.view_as_real(tensor.resolve_conj()).clone()))
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return tensor
        dtype = self.dtypes.get(tensor.dtype, tensor.dtype)
        signs = torch.randint(0, 2, tensor.shape, generator=self._coins, dtype=torch.int8) * 2 - 1
        return (tensor.double() * (1 + torch.finfo(dtype).eps * signs)).to(dtype)


def moved(value: Any, device: str, dtypes: Dtypes | None = None, nudge: Nudge | None = None) -> Any:
    """A sample's arguments on `device` as leaves: with the same strides, or in other dtypes."""
    if isinstance(value, Tensor):
        return _converted(value, dtypes, nudge) if dtypes is not None else _moved_tensor(value, device)
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return type(value)(device)
    if isinstance(value, torch.dtype) and dtypes is not None:
        return dtypes.get(value, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(v, device, dtypes, nudge) for v in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(v, device, dtypes, nudge) for v in value)
    if isinstance(value, dict):
        return {k: moved(v, device, dtypes, nudge) for k, v in value.items()}
    return value


def _converted(tensor: Tensor, dtypes: Dtypes, nudge: Nudge | None) -> Tensor:
    result = tensor.detach()
    if result.is_meta:
        return result
    if nudge is not None:
        result = nudge(result)
    result = result.to(dtypes.get(result.dtype, result.dtype)).clone()
    return result.requires_grad_(tensor.requires_grad)


def _moved_tensor(tensor: Tensor, device: str) -> Tensor:
    plain = tensor.detach()
    if plain.is_meta:
        return plain
    if device == "cpu":
        result = plain.clone() if torch.ops.aten.is_non_overlapping_and_dense(plain) else plain
    elif tensor.layout is not torch.strided:
        result = plain.clone().to(device)
    elif plain.is_conj() or plain.is_neg() or torch.ops.aten.is_non_overlapping_and_dense(plain):
        result = plain.to(device)
    else:
        whole = torch.empty(0, dtype=plain.dtype).set_(plain.untyped_storage())
        result = whole.to(device).as_strided(plain.shape, plain.stride(), plain.storage_offset())
    return result.detach().requires_grad_(tensor.requires_grad)
