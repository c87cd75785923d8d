"""Operators whose callers assume something about memory that a rule on arrays cannot see."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..checks.cpu_errors import refuse_if_the_cpu_does
from ..op_schema import operator_of
from ..recording_kernel import out_variant, recorder


def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """Return false: `nn.TransformerEncoder` then keeps to padded tensors, since there are no nested ones here."""
    return False


_rrelu = recorder("aten::rrelu_with_noise_functional")


def rrelu_with_noise(
    self: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the randomized leaky ReLU; `noise` is written to, although the operator returns the result alone."""
    result: Tensor
    result, slopes = _rrelu(self, noise, lower, upper, training, generator=generator)
    if training:
        noise.copy_(slopes)
    return result


def as_strided_copy(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Implement `torch.as_strided_copy`: what `as_strided` shows, in memory of its own."""
    return self.as_strided(size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


def as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Implement `torch.as_strided_scatter`: a copy of the storage of `self`, with `src` written where `as_strided`
    shows it.
    """
    result = _with_storage(self)
    shown = result.as_strided(size, stride, storage_offset)
    if src.shape != shown.shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(shown.shape)}"
        )
    shown.copy_(src)
    return result


def _with_storage(tensor: Tensor) -> Tensor:
    """Return a copy of `tensor` with all that is in its storage before and between its elements."""
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(tensor.untyped_storage(), 0, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,))
    return whole.clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def addbmm_(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: int = 1, alpha: int = 1) -> Tensor:
    """Implement `Tensor.addbmm_`, the one in-place operator that gives a smaller target the size of the sum."""
    result = torch.addbmm(self, batch1, batch2, beta=beta, alpha=alpha)
    return self.resize_(result.shape).copy_(result)


def _triangle(name: str) -> Callable[[Tensor, int], Tensor]:
    """Return the kernel of `tril_` or `triu_`, which may write to elements that a tensor shows several times.

    An element is 0 afterwards if one of its places is outside of the triangle, as on PyTorch's devices.
    """
    record = recorder(f"aten::{name}")

    def kernel(self: Tensor, diagonal: int = 0) -> Tensor:
        places = zip(self.shape, self.stride(), strict=True)
        repeated = [dim - self.dim() for dim, (size, stride) in enumerate(places) if size > 1 and stride == 0]
        if self.dim() < 2 or not repeated:
            written: Tensor = record(self, diagonal)
            return written
        whole = torch.ones(self.shape[-2:], dtype=torch.bool, device=self.device)
        kept = whole.tril(diagonal) if name == "tril_" else whole.triu(diagonal)
        shown = self
        for dim in repeated:
            shown = shown.narrow(dim, 0, 1)
            kept = kept.all(dim, keepdim=True) if dim >= -2 else kept
        shown.masked_fill_(kept.logical_not(), 0)
        return self

    return kernel


def _triangle_out(name: str) -> Callable[..., object]:
    """Return the kernel of `tril.out` or `triu.out`, which may write to elements that a tensor shows several times.

    Such an element has the value of the last of its places afterwards. The CPU writes those outside of the triangle
    first, row by row.
    """
    fill = out_variant(f"aten::{name}.out")

    def kernel(self: Tensor, diagonal: int = 0, *, out: Tensor) -> object:
        places = zip(out.shape, out.stride(), strict=True)
        repeated = [dim - out.dim() for dim, (size, stride) in enumerate(places) if size > 1 and stride == 0]
        if not repeated or not out.numel() or self.shape != out.shape or self.dtype is not out.dtype or self.dim() < 2:
            return fill(self, diagonal, out=out)
        result = self.tril(diagonal) if name == "tril" else self.triu(diagonal)
        rows, columns = result.shape[-2:]
        if -1 in repeated and name == "tril":  # in each row, the last one inside of the triangle
            last = (torch.arange(rows, device=self.device) + diagonal).clamp(0, columns - 1)
            result = result.gather(-1, last[:, None].expand(*result.shape[:-1], 1))
        shown = out
        for dim in repeated:
            result = result.narrow(dim, result.shape[dim] - 1, 1)
            shown = shown.narrow(dim, 0, 1)
        shown.copy_(result)
        return out

    return kernel


_MOST = torch.finfo(torch.float16).max


def saturate_weight_to_fp16(weight: Tensor) -> Tensor:
    """Implement `aten::_saturate_weight_to_fp16`, which writes to its operand and does not declare that."""
    refuse_if_the_cpu_does(operator_of("aten::_saturate_weight_to_fp16"), (weight,), {})
    return weight.clamp_(-_MOST, _MOST)


KERNELS: dict[str, Callable[..., object]] = {
    "_saturate_weight_to_fp16": saturate_weight_to_fp16,
    "tril_": _triangle("tril_"),
    "triu_": _triangle("triu_"),
    "tril.out": _triangle_out("tril"),
    "triu.out": _triangle_out("triu"),
    "addbmm_": addbmm_,
    "as_strided_copy": as_strided_copy,
    "as_strided_scatter": as_strided_scatter,
    "_nested_tensor_from_mask_left_aligned": nested_tensor_from_mask_left_aligned,
    "rrelu_with_noise": rrelu_with_noise,
}
