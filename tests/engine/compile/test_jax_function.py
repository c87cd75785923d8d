"""A program computes the same as its operations one by one."""

import pytest
import torch

import torch_xla


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_each_operation_rounds_its_result(dtype: torch.dtype) -> None:
    """A result between two operations is no more exact than one that is held: 1e-4 - 1 is -1 in both dtypes."""

    def program(d: str) -> torch.Tensor:
        small, base = torch.full((300,), 1e-4, dtype=dtype, device=d), torch.full((300,), -2.0, dtype=dtype, device=d)
        torch_xla.sync()
        exponent = small - 1
        return torch.stack([base**exponent, (exponent.float() == -1).to(dtype), exponent * 3 + 2])

    torch.testing.assert_close(program("xla").cpu(), program("cpu"), rtol=0, atol=0)
