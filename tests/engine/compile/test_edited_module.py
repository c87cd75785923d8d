"""A module that is being changed knows the numbers that it computes with, and where it does not know them."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from torch_xla._engine.compile import edited_module
from torch_xla._engine.compile.edited_module import EditedModule


@pytest.mark.parametrize("numbers", [(0.0, 1.0), (1.0, 0.0), (-0.0, 0.0), (2.0, 2.0)])
def test_a_number_is_known_if_each_call_gives_it(numbers: tuple[float, float]) -> None:
    inner = jax.jit(lambda x, y: (x + y, x > y, x / y))
    lowered = jax.jit(lambda x: [inner(x, jnp.float32(number)) for number in numbers]).lower(jnp.ones(4))
    module, found = EditedModule.reading(
        lowered.compiler_ir("stablehlo"), {name: name for name in ("stablehlo.add", "stablehlo.divide")}
    )
    is_one = len({repr(number) for number in numbers}) == 1
    for _, operation in found:
        assert module.constant(operation.operands[1]) == (numbers[0] if is_one else None)
        assert sorted(map(repr, module.constants(operation.operands[1]))) == sorted(map(repr, numbers))


def test_a_number_is_unknown_if_a_call_gives_an_argument_of_the_program() -> None:
    inner = jax.jit(lambda x, y: x + y)
    lowered = jax.jit(lambda x, y: (inner(x, y), inner(x, jnp.float32(0)))).lower(jnp.ones(4), jnp.float32(2))
    module, found = EditedModule.reading(lowered.compiler_ir("stablehlo"), {"stablehlo.add": "add"})
    assert [module.constant(operation.operands[1]) for _, operation in found] == [None] * len(found)


@pytest.mark.parametrize("number", [0j, complex(-0.0, 0.0), 1 + 0j, 2.5 - 3j])
def test_a_complex_number_is_known_if_constants_compute_it(number: complex) -> None:
    def function(x: jax.Array) -> jax.Array:
        known = jax.lax.complex(jnp.float32(number.real), jnp.float32(number.imag))
        return x * (known * jnp.complex64(1)) + jnp.real(known) - x[0]

    lowered = jax.jit(function).lower(jnp.ones(4, jnp.complex64))
    names = {f"stablehlo.{name}": name for name in ("multiply", "add", "subtract")}
    module, found = EditedModule.reading(lowered.compiler_ir("stablehlo"), names)
    by_name = {name: module.number_parts(operation.operands[1]) for name, operation in found}
    product = number * (1 + 0j)
    assert repr(by_name["multiply"]) == repr((product.real, product.imag))
    assert repr(by_name["add"]) == repr((number.real, 0.0))
    assert by_name["subtract"] == ()


def test_a_long_sum_of_constants_is_not_followed_to_its_end() -> None:
    def function(x: jax.Array) -> jax.Array:
        known = jnp.complex64(1)
        for _ in range(2000):
            known = known + known
        return x * known

    module, found = EditedModule.reading(
        jax.jit(function).lower(jnp.ones(4, jnp.complex64)).compiler_ir("stablehlo"), {"stablehlo.multiply": "multiply"}
    )
    assert [module.number_parts(operation.operands[1]) for _, operation in found] == [()]


def test_a_search_ends_at_the_first_number_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    @jax.jit
    def inner(x: jax.Array, y: jax.Array) -> jax.Array:
        for _ in range(6):
            y = y + y
        return x * y

    asked, parts = [], edited_module._parts_computed

    def counted(module: EditedModule, source: Any, depth: int) -> tuple[float, ...]:
        asked.append(source)
        return parts(module, source, depth)

    monkeypatch.setattr(edited_module, "_parts_computed", counted)
    lowered = jax.jit(lambda x: [inner(x, x[n] * x[n + 1]) for n in range(40)]).lower(jnp.ones(41, jnp.complex64))
    module, found = EditedModule.reading(lowered.compiler_ir("stablehlo"), {"stablehlo.multiply": "multiply"})
    assert not any(module.number_parts(operation.operands[1]) for _, operation in found)
    assert len(asked) <= 8 * len(found)  # 7,783 if each sum looked at both operands, in each call


@pytest.mark.parametrize("steps", [("float16", "float32", "complex64"), ("float32", "complex64", "complex128")])
def test_a_complex_number_is_known_behind_conversions(steps: tuple[str, ...]) -> None:
    def function(x: jax.Array) -> jax.Array:
        known = jnp.zeros((), steps[0])
        for dtype in steps[1:]:
            known = jax.lax.convert_element_type(known, dtype)
        return x + known

    with jax.enable_x64(True):
        lowered = jax.jit(function).lower(jnp.ones(4, steps[-1]))
    module, found = EditedModule.reading(lowered.compiler_ir("stablehlo"), {"stablehlo.add": "add"})
    assert [module.number_parts(operation.operands[1]) for _, operation in found] == [(0.0, 0.0)]


def test_a_complex_number_is_unknown_if_calls_give_zeros_of_both_signs_or_an_integer_is_between() -> None:
    inner = jax.jit(lambda x, y: x + y)

    def function(x: jax.Array) -> list[jax.Array]:
        return [inner(x, jax.lax.complex(jnp.float32(number), jnp.float32(0))) for number in (0.0, -0.0)]

    def truncated(x: jax.Array) -> jax.Array:
        return x + jax.lax.full((4,), 0.5, jnp.float32).astype(jnp.int32).astype(jnp.complex64)

    for program in (function, truncated):
        lowered = jax.jit(program).lower(jnp.ones(4, jnp.complex64))
        module, found = EditedModule.reading(lowered.compiler_ir("stablehlo"), {"stablehlo.add": "add"})
        assert [module.number_parts(operation.operands[1]) for _, operation in found] == [()]
