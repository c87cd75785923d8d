"""Calls of a platform's custom targets."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas

from torch_xla._engine.interop import custom_calls
from torch_xla._engine.step.pending_graph import graph_of


def text(**options: object) -> str:
    x = torch.ones(2, 3).to("xla")
    (found,) = custom_calls.custom_call([x], "abacus", [(4,)], [torch.int32], **options)  # type: ignore[arg-type]
    assert found.shape == (4,) and found.dtype is torch.int32
    lowered: str = graph_of([found]).lowered().as_text()
    return lowered


def test_the_call_stands_in_the_program_as_it_was_asked_for() -> None:
    written = text(config="fast", version=2, has_side_effect=True)
    assert "stablehlo.custom_call @abacus" in written and "api_version = 2" in written
    assert 'backend_config = "fast"' in written and "has_side_effect = true" in written
    assert "(tensor<2x3xf32>) -> tensor<4xi32>" in written
    assert "has_side_effect = true" not in text() and "api_version = 1" in text() or "api_version" not in text()


def test_calls_that_differ_in_attributes_alone_are_two() -> None:
    one, other = text(attributes={"kind": "a"}), text(attributes={"kind": "b"})
    assert 'kind = "a"' in one and 'kind = "b"' in other


def test_results_must_have_a_size_and_a_dtype_each() -> None:
    with pytest.raises(ValueError):
        custom_calls.custom_call([torch.ones(1).to("xla")], "abacus", [(4,), (2,)], [torch.int32])


def test_a_kernel_is_found_in_the_module_that_holds_it() -> None:
    def kernel(x_ref, out):  # type: ignore[no-untyped-def]
        out[...] = x_ref[...] * 2

    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    module = custom_calls.mosaic(lambda x: pallas.pallas_call(kernel, out_shape=shape)(x), [shape])
    found = custom_calls.configuration(module)
    assert found is not None and "custom_call_config" in found
    assert custom_calls.configuration(custom_calls.mosaic(jnp.sin, [shape])) is None
