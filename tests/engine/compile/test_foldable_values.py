"""Values that XLA may find to be constants, as a module of StableHLO has them."""

import jax
import jax.numpy as jnp

from torch_xla._engine.compile.edited_module import EditedModule
from torch_xla._engine.compile.foldable_values import may_be_folded


def _answers(function: object, *arguments: jax.Array) -> dict[str, list[bool]]:
    """The answers for the operands of `sinh` and of `cosh` in a function, by their names."""
    lowered = jax.jit(function).lower(*arguments)  # type: ignore[arg-type]
    module, found = EditedModule.reading(lowered.compiler_ir("stablehlo"), {f"chlo.{n}": n for n in ("sinh", "cosh")})
    answers: dict[str, list[bool]] = {"sinh": [], "cosh": []}
    for name, operation in found:
        answers[name].append(may_be_folded(module, operation.operands[0]))
    return answers


def test_constants_alone_make_it_in_one_call() -> None:
    inner = jax.jit(lambda x: jnp.tanh(x)[::-1])

    def function(x: jax.Array) -> list[jax.Array]:
        zeros = jnp.zeros(4)
        folded = [inner(zeros), jax.lax.select(zeros > 1, zeros, -zeros), jnp.concatenate([zeros, inner(zeros)])[4:]]
        others = [jnp.exp(x), zeros + x, jnp.arange(4.0), jax.lax.select(x > 1, zeros, jnp.ones(4))]
        return [inner(x), *(jnp.sinh(each) for each in folded), *(jnp.cosh(each) for each in others)]

    assert _answers(function, jnp.ones(4)) == {"sinh": [True] * 3, "cosh": [False] * 4}


def test_integers_make_a_number_of_any_integer() -> None:
    def function(n: jax.Array) -> list[jax.Array]:
        zeros = jnp.zeros(4, jnp.int32)
        folded = [n * 0, n & zeros, n - n, n ^ n, (n != n), (n * 0) * n, jnp.where(n == n, zeros, n)]
        places, some = jnp.arange(4), jnp.array([0, 1, 0, 1])
        others = [n * 2, n & places, n - zeros, n ^ zeros, n != zeros, n * places, n * some]
        return [
            *(jnp.sinh(each.astype(jnp.float32)) for each in folded),
            *(jnp.cosh(each.astype(jnp.float32)) for each in others),
        ]

    assert _answers(function, jnp.ones(4, jnp.int32)) == {"sinh": [True] * 7, "cosh": [False] * 7}


def test_a_part_of_joined_values_is_a_constant() -> None:
    def function(x: jax.Array) -> list[jax.Array]:
        joined, padded = jnp.concatenate([jnp.zeros(4), x]), jax.lax.pad(x, 0.0, [(4, 2, 1)])
        written = jax.lax.dynamic_update_slice(jnp.zeros(8), x, (1,))
        folded = [joined[:4], joined[1:3], padded[:4], padded[11:], written[:1]]
        others = [joined[3:5], joined[4:], padded[3:5], padded[10:11]]
        return [*(jnp.sinh(each) for each in folded), *(jnp.cosh(each) for each in others)]

    assert _answers(function, jnp.ones(4)) == {"sinh": [True] * 5, "cosh": [False] * 4}


def test_a_dimension_of_size_one_or_zero_leaves_no_choice() -> None:
    def function(x: jax.Array) -> list[jax.Array]:
        one = x[:1]
        folded = [jnp.arange(1.0), one.argmax().astype(x.dtype), x[:0].sum(), x[:0] @ x[:0]]
        others = [jnp.arange(2.0), x.argmax().astype(x.dtype), one.sum(), one @ one]
        return [*(jnp.sinh(each) for each in folded), *(jnp.cosh(each) for each in others)]

    assert _answers(function, jnp.ones(4)) == {"sinh": [True] * 4, "cosh": [False] * 4}


def test_a_choice_between_equal_constants_is_one() -> None:
    def function(x: jax.Array) -> list[jax.Array]:
        zeros = jnp.zeros(4)
        folded = [jax.lax.select(x > 1, zeros, zeros), jax.lax.select(x > 1, zeros, jnp.tanh(zeros))]
        integers = jnp.where(x > 1, 1, 0).astype(x.dtype)
        others = [jax.lax.select(x > 1, zeros, jnp.ones(4)), integers, jnp.where(x > 1, x, 0)]
        return [*(jnp.sinh(each) for each in folded), *(jnp.cosh(each) for each in others)]

    assert _answers(function, jnp.ones(4)) == {"sinh": [True] * 2, "cosh": [False] * 3}
