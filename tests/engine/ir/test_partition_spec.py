"""Which axes of a mesh divide each dimension of a value."""

import re
from typing import Any

import pytest

from torch_xla._engine.ir.partition_spec import dims_of, literal


@pytest.mark.parametrize(
    ("names", "spec", "expected"),
    [
        (None, (), ()),
        (None, (0, 1), ((0,), (1,))),
        (None, (None, (1, 0)), ((), (1, 0))),
        (None, ([2], None), ((2,), ())),
        (("data", "model", "x"), ("model", None, ("x", "data")), ((1,), (), (2, 0))),
        (("data", "model", "x"), (0, "model"), ((0,), (1,))),
    ],
)
def test_axes_by_name_or_number(names: Any, spec: Any, expected: Any) -> None:
    assert dims_of("f", (2, 2, 1), names, spec) == expected


@pytest.mark.parametrize(
    ("names", "spec", "message"),
    [
        (None, (3,), "f(): the mesh has no axis 3; it has [0, 1, 2]"),
        (None, (-1,), "f(): the mesh has no axis -1; it has [0, 1, 2]"),
        (None, (True,), "f(): the mesh has no axis True; it has [0, 1, 2]"),
        (None, ("data",), "f(): the mesh has no axis 'data'; it has [0, 1, 2]"),
        (("a", "b", "c"), (1.0,), "f(): the mesh has no axis 1.0; it has ['a', 'b', 'c']"),
        (None, (0, 0), "f(): an axis of the mesh occurs twice in the partition spec (0, 0)"),
        (("a", "b", "c"), ("a", (1, 0)), "f(): an axis of the mesh occurs twice in the partition spec ('a', (1, 0))"),
    ],
)
def test_what_is_no_axis_or_stands_twice_is_refused(names: Any, spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        dims_of("f", (2, 2, 1), names, spec)


@pytest.mark.parametrize("value", [(2, 1), ("data", None), ((0, 1), None), {"a": 2}, [1]])
def test_a_text_is_what_it_was_the_text_of(value: Any) -> None:
    assert literal("f", str(value)) == value
    assert literal("f", "") is None


@pytest.mark.parametrize("text", ["Mesh(2)", "(1,", "__import__('os')", "1 +", "(" * 500, "\0"])
def test_another_text_is_refused_and_not_run(text: str) -> None:
    with pytest.raises(ValueError, match=r"^f\(\): .* is not what str\(\) gives for a mesh or a partition spec$"):
        literal("f", text)
