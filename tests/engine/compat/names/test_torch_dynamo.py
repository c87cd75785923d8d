"""The private names of Dynamo and AOTAutograd behave as expected."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torch_xla._engine.compat.names import torch_dynamo
from torch_xla._engine.compat.names.torch import is_traced


def test_tensors_are_described_with_fixed_sizes_and_each_by_itself() -> None:
    x = torch.arange(6.0).view(2, 3)
    made = torch_dynamo.described([x, x.t(), x])
    assert [(tuple(each.shape), each.stride(), each.dtype) for each in made] == [
        ((2, 3), (3, 1), torch.float32), ((3, 2), (1, 3), torch.float32), ((2, 3), (3, 1), torch.float32),
    ]  # fmt: skip
    assert made[0] is not made[2] and all(isinstance(each, torch_dynamo.FakeTensor) for each in made)
    assert all(isinstance(n, int) for each in made for n in each.shape)


def test_a_trace_is_seen_from_inside_and_left_for_a_block() -> None:
    found: list[bool] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        found.append(is_traced())
        with torch_dynamo.outside_of_traces():
            found.append(is_traced())
        return x + 1

    assert not is_traced()
    make_fx(program)(torch.ones(2))
    assert found == [True, False] and not is_traced()
    with FakeTensorMode():
        assert is_traced()
        with pytest.raises(KeyError), torch_dynamo.outside_of_traces():
            raise KeyError
        assert is_traced()


def test_what_transforms_have_wrapped_is_found() -> None:
    found: list[Any] = []
    x = torch.ones(2, 3)

    def program(row: torch.Tensor) -> torch.Tensor:
        found.append(torch_dynamo.innermost(row))
        return row.sum()

    torch.func.vmap(torch.func.grad(program))(x)
    assert found[0].shape == (2, 3) and not torch._C._functorch.is_functorch_wrapped_tensor(found[0])
    assert torch_dynamo.innermost(x) is x


def test_a_name_means_the_backend_that_was_registered_last() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        return graph.forward

    for _ in range(2):
        torch_dynamo.register_backend(backend, "test_private_dynamo")
    try:
        assert torch_dynamo.registry.lookup_backend("test_private_dynamo") is backend
    finally:
        torch_dynamo.registry._COMPILER_FNS.pop("test_private_dynamo", None)
        torch_dynamo.registry._BACKENDS.pop("test_private_dynamo", None)


def test_values_that_a_trace_would_have_to_know_raise_what_is_listed() -> None:
    with FakeTensorMode() as mode, pytest.raises(torch_dynamo.READS_ON_THE_HOST):
        mode.from_tensor(torch.ones(2)).sum().item()
