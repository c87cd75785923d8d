"""Window functions agree with PyTorch on the CPU."""

import pytest
import torch

from tests.support.rule_table import call, check_calls

aten = torch.ops.aten

WINDOWS = [aten.hann_window, aten.hamming_window, aten.blackman_window, aten.bartlett_window, aten.kaiser_window]


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 8])
def test_windows_of_every_length(length: int, dtype: torch.dtype | None) -> None:
    calls = [call(window.default, length, dtype=dtype) for window in WINDOWS]
    calls += [call(window.periodic, length, False, dtype=dtype) for window in WINDOWS]
    calls += [
        call(aten.kaiser_window.beta, length, True, 5.0, dtype=dtype),
        call(aten.hamming_window.periodic_alpha, length, True, 0.6, dtype=dtype),
        call(aten.hamming_window.periodic_alpha_beta, length, False, 0.6, 0.3, dtype=dtype),
    ]
    # PyTorch reckons in the dtype of the result, in float32 to a few roundings of 1.
    check_calls(calls, rtol=1.3e-6, atol=1e-6)
