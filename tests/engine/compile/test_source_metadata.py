"""Where the operations of a program come from."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.compile.source_metadata import UNKNOWN, Origins, scopes_at
from torch_xla._engine.ir.call_plan import Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.value_spec import spec_of

SPEC = spec_of((2, 3), (3, 1), torch.float32)
SIN, COS = (
    Plan(op, ((Operand(0),), {}), (SPEC,), (), (SPEC,))
    for op in (torch.ops.aten.sin.default, torch.ops.aten.cos.default)
)
GRAPH = Graph((SPEC,), (Operation(SIN, (0,), 0, -1, 1, 0), Operation(COS, (1,), 0, -1, 2, 0)), (2,))
LINES = (("/home/me/train.py", 31, "step"), None)
ORIGINS = Origins(LINES, (("model", "head"), ()))


def lowered(origins: Origins) -> str:
    """A program whose first call belongs to the first operation, and the second to the second."""

    def program(x: jax.Array) -> jax.Array:
        with origins.of(GRAPH, 0):
            x = jnp.sin(x)
        with origins.of(GRAPH, 1):
            return jnp.cos(x)

    return str(jax.jit(program).lower(jnp.ones(3)).as_text(debug_info=True))


def test_what_is_traced_belongs_to_the_operation() -> None:
    text = lowered(ORIGINS)
    assert '"train.py"' in text or "/home/me/train.py" in text
    assert "model/head/aten::sin" in text
    assert "model/head/aten::cos" not in text and "aten::cos" in text


def test_what_is_not_known_is_not_told() -> None:
    text = lowered(UNKNOWN)
    assert "train.py" not in text and "model" not in text and "aten::sin" in text


def test_an_operation_is_told_with_its_operands_and_the_line() -> None:
    assert ORIGINS.described(GRAPH, 0) == "aten::sin of (f32[2,3]), recorded by /home/me/train.py:31 in step"
    assert ORIGINS.described(GRAPH, 1) == UNKNOWN.described(GRAPH, 1) == "aten::cos of (f32[2,3])"


def test_a_part_has_the_origins_of_its_operations() -> None:
    part = ORIGINS.part([1, 0, 0])
    assert list(part.lines) == [LINES[1], LINES[0], LINES[0]]
    assert list(part.scopes) == [(), ("model", "head"), ("model", "head")]
    assert UNKNOWN.part([1, 0]) == UNKNOWN


@given(st.lists(st.integers(0, 20), unique=True).map(sorted), st.lists(st.integers(0, 20), unique=True).map(sorted))
def test_the_scopes_at_a_position_are_those_last_opened(starts: Sequence[int], positions: Sequence[int]) -> None:
    marks = [(start, (f"scope{start}",)) for start in starts]
    found = scopes_at(positions, marks)
    if not marks:
        assert found == []
        return
    for position, scopes in zip(positions, found, strict=True):
        before = [start for start in starts if start <= position]
        assert scopes == ((f"scope{max(before)}",) if before else ())


@pytest.mark.parametrize("index", [0, 1])
def test_a_block_ends_also_by_an_error(index: int) -> None:
    with pytest.raises(ZeroDivisionError), ORIGINS.of(GRAPH, index):
        raise ZeroDivisionError
    assert "aten::" not in str(jax.jit(jnp.sin).lower(1.0).as_text(debug_info=True))
