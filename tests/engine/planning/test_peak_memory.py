"""Which intermediate values are alive when they take most memory."""

from tests.support.hlo import TEXT
from torch_xla._engine.planning import hlo_parser, peak_memory

HEAD = "HloModule m, is_scheduled=true\n\n"


def at_peak(body: str, *others: str) -> list[str]:
    """Return the makers of the values that are alive at the peak of a program of these lines."""
    text = (
        HEAD + "".join(f"%{other}\n}}\n\n" for other in others) + "ENTRY %main (p: f32[8]) -> f32[8] {\n" + body + "}\n"
    )
    return sorted(each.maker.name for each in peak_memory.at_peak(hlo_parser.module(text)))


def test_a_value_lives_from_its_maker_to_its_last_reader() -> None:
    module = hlo_parser.module(TEXT)
    # The gathered weight and the product; then the loop's state and what is sent in it.
    assert sorted(each.maker.name for each in peak_memory.at_peak(module)) == ["all", "fused"]
    assert [each.maker.name for each in peak_memory.at_peak(module, {"all"})] == ["all"]


def test_results_and_what_only_shows_others_take_no_memory_of_the_programs_own() -> None:
    assert at_peak("  ROOT %p = f32[8]{0} parameter(0)\n") == []
    assert at_peak("  %p = f32[8]{0} parameter(0)\n  ROOT %r = f32[8]{0} negate(%p)\n") == []


def test_what_nobody_reads_later_gives_its_memory_to_what_is_written_in_place() -> None:
    start = "  %p = f32[8]{0} parameter(0)\n  %a = f32[8]{0} exponential(%p)\n"
    assert at_peak(start + "  %b = f32[8]{0} add(%a, %p)\n  ROOT %r = f32[8]{0} negate(%b)\n") in (["a"], ["b"])
    # Read once more, both live at once.
    assert at_peak(start + "  %b = f32[8]{0} add(%a, %p)\n  ROOT %r = f32[8]{0} add(%b, %a)\n") == ["a", "b"]
    # An operator that cannot write in place needs both.
    assert at_peak(start + "  %b = f32[8]{0} sort(%a)\n  ROOT %r = f32[8]{0} negate(%b)\n") == ["a", "b"]


def test_what_a_called_computation_needs_comes_on_top() -> None:
    inner = """inner (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  %big = f32[64]{0} broadcast(%q), dimensions={}
  ROOT %s = f32[8]{0} slice(%big), slice={[0:8]}"""
    body = (
        "  %p = f32[8]{0} parameter(0)\n  %a = f32[8]{0} exponential(%p)\n"
        "  %c = f32[8]{0} conditional(%p, %a), branch_computations={%inner, %inner}\n"
        "  ROOT %r = f32[8]{0} add(%c, %a)\n"
    )
    assert at_peak(body, inner) == ["a", "big", "c"]


def test_a_proto_that_tells_nothing_is_told_from_one_that_sets_nothing_aside() -> None:
    assert peak_memory.set_aside(b"", b"") is None
