"""The text of XLA's compiled program is parsed."""

from tests.support.hlo import LINE, TEXT
from torch_xla._engine.planning import hlo_parser


def test_a_module_is_taken_apart() -> None:
    module = hlo_parser.module(TEXT)
    assert (
        module.partitions == 4
        and module.times == 1
        and set(module.computations) == {*("product", "body", "condition", "main")}
    )
    fused = module.entry.by_name["fused"]
    assert (fused.opcode, fused.operands, fused.line) == ("fusion", ("x.1", "all"), LINE)
    assert str(fused.leaves[0]) == "f32[8,32]" and fused.bytes == 1024 and fused.called() == [("calls", "product")]
    assert module.entry.root.name == "result"
    assert [leaf.dims for leaf in module.entry.by_name["loop"].leaves] == [(), (8, 32), ()]


def test_sizes_of_elements() -> None:
    assert [hlo_parser.bytes_of(name) for name in ("pred", "bf16", "f32", "c128", "s4", "f8e4m3fn", "u64")] == [
        *(1, 2, 4, 16, 0.5, 1, 8)
    ]


def test_both_computations_of_a_conditional_run() -> None:
    by_number = "%c = f32[2] conditional(%i, %x, %x), branch_computations={%first, %second}"
    by_truth = "%c = f32[2] conditional(%p, %x, %x), true_computation=%first, false_computation=%second"
    branches = [f"%{name} (x: f32[2]) -> f32[2] {{\n  ROOT %n = f32[2] negate(%x)\n}}" for name in ("first", "second")]
    for text in (by_number, by_truth):
        entry = f"ENTRY %main (x: f32[2]) -> f32[2] {{\n  ROOT {text}\n}}"
        module = hlo_parser.module("\n".join(["HloModule m", *branches, entry]))
        assert [computation.name for computation, _ in module.executed()] == ["main", "second", "first"]
