"""The search for a layout: what it tries, and that it finds the best by costs that are known."""

from collections.abc import Sequence

import pytest

from tests.support.inputs_of_a_layout import GRAPH, ROLES, SIZES
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.compile.program import Program
from torch_xla._engine.metrics.events import Sizes
from torch_xla._engine.planning.cost_model import Work
from torch_xla._engine.planning.device_specs import DeviceSpec
from torch_xla._engine.planning.sharding_search import automatic, search
from torch_xla._engine.planning.sharding_search.input_roles import groups_of
from torch_xla._engine.runtime import abstract_devices, device_assignment

PLAIN = DeviceSpec("plain", 1 << 30, {"f32": 1.0}, 1.0, 1.0)


def found(monkeypatch: pytest.MonkeyPatch, wanted: Sequence[str], most: int, room: int | None = None) -> search.Found:
    """The best layout where each input that is not divided as `wanted` takes a second, and a byte each element."""

    def measured(program: Program, numbers: Sequence[float]) -> tuple[Sizes, Work]:
        given = [str(spec.sharding) for spec in program.graph.inputs]
        parts = [
            1 if spec.sharding is None else 2 ** sum(map(len, spec.sharding.dims)) for spec in program.graph.inputs
        ]
        wrong = sum(one != other for one, other in zip(given, wanted, strict=True))
        held = sum(spec.numel // count for spec, count in zip(program.graph.inputs, parts, strict=True))
        return Sizes(held, 0, 0, 0, 0), Work(steps=[(0.0, "", wrong)])

    monkeypatch.setattr(search, "sizes_and_work", measured)
    program = Program(GRAPH, key_of(GRAPH, (), device_assignment.of_mesh(abstract_devices.virtual_devices(4))))
    groups = groups_of(GRAPH, ROLES, by_name=True)
    return search.Search(program, (), groups, (2, 2), PLAIN, room, most).run()


def test_the_best_layout_is_found_by_changing_one_group_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    best = found(monkeypatch, ["[1, 0]", "[1, 0]", "[1, 0]", "[0.1]", "None"], 40)
    assert best.dims == (((1,), (0,)), ((0, 1), ())) or best.dims == (((1,), (0,)), ((0, 1),))
    assert best.cost.seconds == 0 and best.is_exhausted and len(best.trials) <= 40
    assert best.trials[0].name == "whole on each device" and best.trials[1].name == "data 2 × data 2"


def test_no_more_is_compiled_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    best = found(monkeypatch, ["[1, 0]", "[1, 0]", "[1, 0]", "[0.1]", "None"], 3)
    assert len(best.trials) == 3 and not best.is_exhausted


def test_what_fits_is_better_than_what_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ["None"] * len(SIZES)
    assert found(monkeypatch, whole, 60).cost.seconds == 0
    best = found(monkeypatch, whole, 60, room=3 * 16 + 64 + 1)
    assert best.cost.missing == 0 and best.cost.seconds == 3  # the parameters are divided, and the batch is not


def test_the_mesh_is_nearly_a_square(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [automatic.mesh_shape_for(count) for count in (1, 2, 4, 6, 7, 8)] == [
        (1,),
        (2,),
        (2, 2),
        (3, 2),
        (7,),
        (4, 2),
    ]
    monkeypatch.setenv("XLA_AUTO_SPMD_MESH", "4,1")
    assert automatic.mesh_shape_for(4) == (4, 1)
    with pytest.raises(ValueError, match=r"a mesh of shape \(4, 1\), which has 4 devices; there are 8"):
        automatic.mesh_shape_for(8)
    for shape in ((-2, -4), (0, 8)):
        with pytest.raises(ValueError, match="give sides of 1 or more"):
            automatic.mesh_shape_for(8, shape)
    monkeypatch.setenv("XLA_AUTO_SPMD_MESH", "4,x")
    with pytest.raises(ValueError, match="XLA_AUTO_SPMD_MESH is '4,x'; it must be the sides of a mesh"):
        automatic.mesh_shape_for(4)
