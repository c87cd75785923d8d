"""Call a platform's own kernels by name: StableHLO's `custom_call`."""

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import torch
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.mlir import ir

from .. import dtypes
from ..atomic import uncollected
from ..compat.names import jax as private
from .jax_functions import call as call_function


def custom_call(
    tensors: Sequence[torch.Tensor],
    target: str,
    sizes: Sequence[Sequence[int]],
    kinds: Sequence[torch.dtype],
    has_side_effect: bool = False,
    config: str = "",
    version: int = 0,
    attributes: dict[str, str] | None = None,
) -> list[torch.Tensor]:
    """Return the results of the call, one for each size and dtype."""
    described = [
        jax.ShapeDtypeStruct(tuple(size), dtypes.to_jax(dtypes.on_device(kind)))
        for size, kind in zip(sizes, kinds, strict=True)
    ]

    def call(*arrays: object) -> tuple[jax.Array, ...]:
        marked = set_xla_metadata(**attributes) if attributes else nullcontext()
        with marked:
            run = jax.ffi.ffi_call(
                target,
                described,
                has_side_effect=has_side_effect,
                custom_call_api_version=version or 1,
                legacy_backend_config=config,
            )
            return tuple(run(*arrays))

    # JAX's text of a function, which identifies it, lacks the attributes.
    suffix = hashlib.sha256(repr(sorted((attributes or {}).items())).encode()).hexdigest()[:8] if attributes else ""
    return list(call_function(call, tensors, {}, f"{target}{suffix}"))


@uncollected
def mosaic(kernel: Any, arguments: Sequence[Any]) -> object:
    """Return what JAX compiles a Pallas kernel to for a TPU: a module of StableHLO. No TPU is needed."""
    lowered = jax.jit(kernel).trace(*arguments).lower(lowering_platforms=("tpu",))
    return lowered.compiler_ir("stablehlo")


def configuration(module: object) -> str | None:
    """Return the configuration of the first call of a TPU's kernel in a module, which holds the kernel itself."""
    found: list[str] = []

    def look(operation: Any) -> ir.WalkResult:
        called = operation.name == "stablehlo.custom_call" and str(operation.attributes["call_target_name"])
        if called and "tpu_custom_call" in called:
            found.append(operation.attributes["backend_config"].value)
        return ir.WalkResult.ADVANCE

    private.walk(module, look)
    return found[0] if found else None
