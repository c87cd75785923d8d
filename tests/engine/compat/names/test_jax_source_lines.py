"""Traced operations get the source line and the names that the engine gives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from torch_xla._engine.compat.names import jax_source_lines


def lines_of(function: Callable[..., Any], *arguments: Any) -> str:
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")
    return str(module.operation.get_asm(enable_debug_info=True))


def test_what_is_traced_has_the_line_and_the_names_that_are_given() -> None:
    def program(x: Any) -> Any:
        with jax_source_lines.located(("model.py", 42, "forward"), ["outer"]):
            x = jnp.sin(x)
            with jax_source_lines.located(None, ["inner"]):
                return jnp.cos(x)

    text = lines_of(program, jnp.ones(2))
    traced = [line for line in text.splitlines() if "sin" in line or "cos" in line]
    assert text.count('"model.py":42') >= 1 and "outer/sin" in text and "outer/inner/cos" in text
    assert "test_jax_source_lines.py" not in "".join(traced)


def test_a_traceback_has_one_line() -> None:
    made = jax_source_lines.traceback_at(("model.py", 7, "step"))
    frames = [(frame.file_name, frame.line_num, frame.function_name) for frame in made.frames]
    assert ("model.py", 7, "step") in frames and not any("test_jax_source_lines" in file for file, _, _ in frames)
    assert jax_source_lines.traceback_at(("model.py", 7, "step")) is made


def test_the_cache_of_tracebacks_is_bounded() -> None:
    assert 0 < jax_source_lines.traceback_at.cache_parameters()["maxsize"] <= 1 << 16
