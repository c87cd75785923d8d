"""The groups of a collective are lines along axes of the user's mesh."""

import pytest

from torch_xla._engine.planning.collective_axes import NamedMesh, axes_of, groups_of, no_axes
from torch_xla._engine.planning.hlo_parser import Instruction

MESH = NamedMesh(("data", "model"), (2, 4), tuple(range(8)))


def collective(attributes: str) -> Instruction:
    return Instruction("all-reduce", (), False, "all-reduce", (), "", f", {attributes}", None, False)


ROWS, COLUMNS = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(("attributes", "groups", "axes"), [
    ("replica_groups={{0,1,2,3},{4,5,6,7}}", ROWS, "model"),
    ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", COLUMNS, "data"),
    ("replica_groups=[2,4]<=[8], use_global_device_ids=true", ROWS, "model"),
    ("replica_groups=[4,2]<=[2,4]T(1,0)", COLUMNS, "data"),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ROWS, "model"),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", COLUMNS, "data"),
    ("replica_groups=mesh['a'=4,'b'=2]<=[2,4]T(1,0) {'b'}", COLUMNS, "data"),
    ("replica_groups=mesh['a'=8] {'a':(1)2}", COLUMNS, "data"),
    ("replica_groups=mesh['a'=8] {'a':(2)4}", ROWS, "model"),
    ("replica_groups=[1,8]<=[8]", [list(range(8))], "data × model"),
    ("source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", [[0, 1], [1, 2], [2, 3], [3, 0]], "model"),
])  # fmt: skip
def test_groups_and_their_axes(attributes: str, groups: list[list[int]], axes: str) -> None:
    (found,) = groups_of(collective(attributes))
    assert found.tolist() == groups
    assert axes_of(collective(attributes), MESH) == axes


def test_groups_may_have_different_sizes() -> None:
    unequal = collective("replica_groups={{0,1,2},{4,5},{3},{6,7}}")
    assert sorted(each.tolist() for each in groups_of(unequal)) == [[[0, 1, 2]], [[3]], [[4, 5], [6, 7]]]
    assert axes_of(unequal, MESH, [0, 0, 0, 0, 1, 1, 1, 1]) == "model"
    assert (
        axes_of(collective("replica_groups={{0,4,1},{2,3}}"), MESH, [0, 0, 0, 0, 1]) == "data × model, between slices"
    )
    assert axes_of(collective("replica_groups={{0,4,1},{2,3}}"), None, [0, 0, 0, 1]) == "between slices"


def test_a_mesh_may_number_its_devices_in_another_order() -> None:
    turned = NamedMesh(("x", "y"), (4, 2), (0, 4, 1, 5, 2, 6, 3, 7))
    assert axes_of(collective("replica_groups=[2,4]<=[8]"), turned) == "x"
    assert axes_of(collective("replica_groups=[4,2]<=[2,4]T(1,0)"), turned) == "y"


def test_what_travels_between_slices_is_named_so() -> None:
    slices = [0, 0, 0, 0, 1, 1, 1, 1]
    assert axes_of(collective("replica_groups=[4,2]<=[2,4]T(1,0)"), MESH, slices) == "data, between slices"
    assert axes_of(collective("replica_groups=[2,4]<=[8]"), MESH, slices) == "model"
    assert axes_of(collective("replica_groups=[4,2]<=[2,4]T(1,0)"), None, slices) == "between slices"


def test_without_a_mesh_or_with_a_smaller_one_no_axis_is_named() -> None:
    assert axes_of(collective("replica_groups=[2,4]<=[8]"), *no_axes()) == ""
    assert axes_of(collective("replica_groups=[2,4]<=[8]"), NamedMesh(("x",), (4,), (0, 1, 2, 3))) == ""
    assert axes_of(collective("channel_id=1"), MESH) == ""
