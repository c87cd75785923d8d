"""The cycles that a TPU's compiler writes beside its instructions, by line and by module."""

from torch_xla._engine.planning import hlo_parser
from torch_xla._engine.planning.estimated_cycles import cycles_of

TEXT = """HloModule jit_program, is_scheduled=true, entry_computation_layout={(f32[8]{0:T(128)})->f32[8]{0:T(128)}}

%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(128)} parameter(0)
  ROOT %c = f32[8]{0:T(128)} fusion(%p), metadata={NAMES}, backend_config={"window_config":{"estimated_cycles":"100"}}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(128)} parameter(0)
  %w = f32[8]{0:T(128)} while(%x), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %r = f32[8]{0:T(128)} fusion(%w), metadata={op_name="jit(program)/jit(relu)/max"}, config={"estimated_cycles":7}
}
""".replace("NAMES", 'op_name="jit(program)/Net/layers.0/aten::mm/dot_general" source_file="a.py" source_line=3')


def test_cycles_are_summed_over_rounds() -> None:
    found = cycles_of([hlo_parser.module(TEXT, times=2)])
    assert found.all == 2 * (4 * 100 + 7)
    assert found.by_line == {("a.py", 3, ""): 800, None: 14}
    assert found.by_module == {"Net/layers.0": 800, "": 14}


def test_a_program_without_estimates_has_none() -> None:
    found = cycles_of([hlo_parser.module(TEXT.replace("estimated_cycles", "other"))])
    assert found.all == 0 and found.by_line == {} and found.by_module == {}
