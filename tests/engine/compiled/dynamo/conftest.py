"""The setup of every test of `torch.compile`."""

from collections.abc import Iterator

import pytest
import torch

import torch_xla


@pytest.fixture(autouse=True)
def compilations_start_anew() -> Iterator[None]:
    torch_xla.sync()
    torch._dynamo.reset()
    yield
    torch_xla.sync()
