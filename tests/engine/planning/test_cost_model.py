"""The operations, memory traffic and communication of a program."""

import jax
import jax.numpy as jnp
import pytest

from tests.support.hlo import LINE, TEXT
from torch_xla._engine.planning import cost_model, hlo_parser


def test_stages_run_as_often_as_they_say() -> None:
    assert cost_model.work_of([hlo_parser.module(TEXT, 3), hlo_parser.module(TEXT)]).all_flops == 4 * 2 * 8 * 32 * 16


def test_work_counts_products_and_what_is_sent() -> None:
    found = cost_model.work_of([hlo_parser.module(TEXT)])
    assert found.flops == {"f32": 2 * 8 * 32 * 16}
    gathered, reduced = sorted(found.collectives, key=lambda each: each.kind)
    assert (gathered.kind, gathered.devices, gathered.count, gathered.bytes) == ("all-gather", 4, 1, 2048)
    assert gathered.sent == 2048 * 3 // 4 and gathered.line == LINE and gathered.largest == "f32[16,32]"
    # Five rounds of a loop, among two.
    assert (reduced.kind, reduced.devices, reduced.count, reduced.bytes, reduced.sent) == (
        "all-reduce",
        2,
        5,
        5120,
        5120,
    )


def compiled(function: object, *shapes: tuple[int, ...]) -> cost_model.Work:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return cost_model.work_of([hlo_parser.module(jax.jit(function).lower(*arguments).compile().as_text())])  # type: ignore[call-overload]


def test_products_and_convolutions_of_real_programs() -> None:
    assert compiled(lambda x, y: x @ y, (3, 4, 5), (3, 5, 6)).all_flops == 2 * 3 * 4 * 6 * 5
    by_two = compiled(lambda x, w: jax.lax.conv(x, w, (2, 2), "VALID"), (1, 3, 9, 9), (8, 3, 3, 3))
    assert by_two.flops == {"f32": 2 * (8 * 4 * 4) * (3 * 3 * 3)}
    assert compiled(lambda x: jnp.sin(x) + x, (7,)).all_flops == 0


def test_what_is_moved_is_what_is_read_and_written() -> None:
    assert compiled(lambda x, y: x + y, (10, 10), (10, 10)).bytes == 3 * 400
    # Of what it takes a part from, that part.
    assert compiled(lambda x: x[3:5] * 2, (1000, 10)).bytes == 2 * 80


def instruction(opcode: str, attributes: str) -> hlo_parser.Instruction:
    return hlo_parser.Instruction("x", (), False, opcode, (), "", attributes, None, False)


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        ("replica_groups={{0,1,2},{3,4,5}}", 3),
        ("replica_groups={{3},{0,1,2}}", 3),
        ("replica_groups={}", 6),
        ("replica_groups=[3,2]<=[6]", 2),
        ("replica_groups=[2,3]<=[3,2]T(1,0)", 3),
        ("replica_groups=mesh['a'=2,'b'=3] {'b'}", 3),
        ("replica_groups=mesh['a'=2,'b'=3] {'a','b'}", 6),
        ("replica_groups=mesh['a'=6] {'a':(2)3}", 3),
        ("source_target_pairs={{0,1},{1,0}}", 6),
    ],
)
def test_the_devices_of_a_group_in_every_notation(groups: str, count: int) -> None:
    assert cost_model.group_size(instruction("all-reduce", f", {groups}, to_apply=%sum"), 6) == count


def test_the_beginning_of_a_collective_is_one_and_its_end_is_none() -> None:
    kinds = [
        cost_model.kind_of(instruction(name, ""))
        for name in ("all-gather", "all-gather-start", "all-gather-done", "add")
    ]
    assert kinds == ["all-gather", "all-gather", None, None]
