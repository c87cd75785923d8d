"""Kernels written in Pallas, where nothing compiles them."""

from collections.abc import Callable
from typing import Any

from jax.experimental.pallas import tpu as pallas_tpu


def interpreted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, a function that calls Pallas, as a function that any platform runs, slowly."""

    def run(*arrays: Any) -> Any:
        with pallas_tpu.force_tpu_interpret_mode():
            return kernel(*arrays)

    return run
