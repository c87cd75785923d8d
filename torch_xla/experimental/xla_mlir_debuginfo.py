"""Write notes into the locations of exported StableHLO."""

import torch


def write_mlir_debuginfo(x: torch.Tensor, data: str) -> torch.Tensor:
    """Return a copy of `x` whose operation in StableHLO has the text `data` in its location.

    The compiler removes the operation. This is `torch.ops.xla.write_mlir_debuginfo`.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.xla_mlir_debuginfo import write_mlir_debuginfo
    >>> write_mlir_debuginfo(torch.ones(2, device="xla") + 1, "sum of ones")
    tensor([2., 2.], device='xla:0')
    """
    result: torch.Tensor = torch.ops.xla.write_mlir_debuginfo(x, data)
    return result


# The operator is the same on the CPU.
write_mlir_debuginfo_tensor = write_mlir_debuginfo


def write_mlir_debuginfo_meta(x: torch.Tensor, data: str) -> torch.Tensor:
    """Return the result of the operator without values."""
    return torch.empty_like(x)
