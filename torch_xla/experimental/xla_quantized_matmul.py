"""Linear layers whose weights are integers of 8 or 4 bits."""

import torch
from torch import Tensor


def quantized_matmul(
    x: Tensor,
    w: Tensor,
    scaler: Tensor,
    zero_point: Tensor | None = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> Tensor:
    """Compute x · (w · scaler - zero_point) for an int8 `w`: the same as `torch.ops.xla.quantized_matmul`.

    With `block_size` -1 there is a scale for each output: w [out, in], scaler and zero_point [out]. Otherwise there is
    one for each output and block of inputs: w [in / block_size, block_size, out], scaler and zero_point
    [in / block_size, out]. With `int4_weight` weights have four bits, -8 to 7: one in each int8, or two neighbouring
    inputs in each uint8, the first in the lower bits. With `quantize_activation` each row of `x` is rounded to int8 as
    well, and integers are multiplied. The product has a gradient with respect to `x`.

    Raises `ValueError` for sizes that do not fit, `TypeError` for another dtype.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.xla_quantized_matmul import quantized_matmul
    >>> w = torch.tensor([[2, 4]], dtype=torch.int8, device="xla")
    >>> quantized_matmul(torch.ones(1, 2, device="xla"), w, torch.tensor([0.5], device="xla"))
    tensor([[3.]], device='xla:0')
    """
    result: Tensor = torch.ops.xla.quantized_matmul(
        x, w, scaler, zero_point, block_size, int4_weight, quantize_activation
    )
    return result


# The operator is the same on the CPU.
quantized_matmul_xla = quantized_matmul


class XlaQuantizedLinear(torch.nn.Module):
    """A linear layer with a quantised weight, without bias. `load_quantized_weight` sets the weight.

    With `is_symmetric` there is no zero point. The other settings are those of `quantized_matmul`. A weight of four
    bits takes half a byte for each number, or a byte where the number of inputs (of a block) is odd.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.xla_quantized_matmul import XlaQuantizedLinear
    >>> layer = XlaQuantizedLinear(2, 1, is_symmetric=True)
    >>> layer.load_quantized_weight(torch.tensor([[2, 4]], dtype=torch.int8), torch.tensor([0.5]))
    >>> layer.to("xla")(torch.ones(1, 2, device="xla"))
    tensor([[3.]], device='xla:0')
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ) -> None:
        super().__init__()
        if block_size != -1 and input_dim % block_size:
            raise ValueError(f"XlaQuantizedLinear(): block_size={block_size} does not divide input_dim={input_dim}")
        self.input_dim, self.output_dim, self.is_symmetric = input_dim, output_dim, is_symmetric
        self.block_size, self.int4_weight, self.quantize_activation = block_size, int4_weight, quantize_activation
        self._size = (output_dim, input_dim) if block_size == -1 else (input_dim // block_size, block_size, output_dim)
        scales = (output_dim,) if block_size == -1 else (input_dim // block_size, output_dim)
        # Pairs are neighbours along the inputs: of an odd number of inputs each number has a byte.
        self._in_pairs = int4_weight and self._size[1] % 2 == 0
        stored = (self._size[0], self._size[1] // 2, *self._size[2:]) if self._in_pairs else self._size
        self.weight: Tensor
        self.weight_scaler: Tensor
        self.zero_point: Tensor | None
        self.register_buffer("weight", torch.zeros(stored, dtype=torch.uint8 if self._in_pairs else torch.int8))
        self.register_buffer("weight_scaler", torch.zeros(scales))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(scales))

    def load_quantized_weight(self, weight: Tensor, weight_scaler: Tensor, zero_point: Tensor | None = None) -> None:
        """Load a weight of int8, in the size that `quantized_matmul` requires, with its scales and zero points.

        Raises `ValueError` for sizes that do not fit, numbers that need more than four bits, or an unexpected zero
        point.
        """
        if tuple(weight.shape) != self._size or tuple(weight_scaler.shape) != tuple(self.weight_scaler.shape):
            raise ValueError(
                f"load_quantized_weight(): expected a weight of shape {list(self._size)} with scales of shape "
                f"{list(self.weight_scaler.shape)}; got "
                f"{list(weight.shape)} and {list(weight_scaler.shape)}"
            )
        if self.is_symmetric and zero_point is not None:
            raise ValueError("load_quantized_weight(): a symmetric layer takes no zero_point")
        if self.int4_weight:
            if weight.numel() and (int(weight.min()) < -8 or int(weight.max()) > 7):
                raise ValueError(
                    f"numbers of 4 bits are -8 to 7; the weight has {int(weight.min())} to {int(weight.max())}"
                )
        if self._in_pairs:
            pairs = (weight.to(torch.int16) & 15).to(torch.uint8).unflatten(1, (-1, 2))
            weight = pairs.select(2, 0) | (pairs.select(2, 1) << 4)
        self.weight = weight.to(self.weight.device)
        self.weight_scaler = weight_scaler.to(self.weight.device)
        if not self.is_symmetric:
            given = torch.zeros_like(weight_scaler) if zero_point is None else zero_point
            self.zero_point = given.to(self.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product, in the dtype of `x`."""
        return quantized_matmul(
            x, self.weight, self.weight_scaler, self.zero_point, self.block_size, self.int4_weight,
            self.quantize_activation,
        )  # fmt: skip
