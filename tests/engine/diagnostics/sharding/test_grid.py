import numpy as np
import pytest

from torch_xla._engine.diagnostics.sharding import grid


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("{devices=[2,2]0,1,2,3}", [[[0], [1]], [[2], [3]]]),
        ("{devices=[2,2]<=[4]}", [[[0], [1]], [[2], [3]]]),
        ("{devices=[2,2]<=[2,2]T(1,0)}", [[[0], [2]], [[1], [3]]]),
        ("{devices=[4]0,1,2,3}", [[[0], [1], [2], [3]]]),
        ("{devices=[1,4]<=[4]}", [[[0], [1], [2], [3]]]),
        ("{devices=[4,1]<=[4]}", [[[0]], [[1]], [[2]], [[3]]]),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", [[[0, 1]], [[2, 3]]]),
        ("{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", [[[0, 1]], [[2, 3]]]),
        ("{devices=[1,2,1,2]<=[4]}", [[[0], [1]], [[2], [3]]]),
        ("{replicated}", [[[]]]),
        ("", [[[]]]),
        ("{maximal device=3}", [[[3]]]),
    ],
)
def test_each_part_has_its_devices(sharding: str, expected: object) -> None:
    assert grid.devices_of(sharding).tolist() == expected


def test_what_cannot_be_drawn_is_told() -> None:
    with pytest.raises(ValueError, match=r"'rows' is no sharding as XLA writes it, such as '\{devices"):
        grid.devices_of("rows")
    with pytest.raises(ValueError, match="divides 3 dimensions; one or two can be drawn"):
        grid.devices_of("{devices=[2,2,2]<=[8]}")
    with pytest.raises(ValueError, match="has 3 devices for tiles"):
        grid.devices_of("{devices=[2,2]0,1,2}")


def test_tables_and_pictures_have_a_cell_for_each_part() -> None:
    cells = grid.labels(np.array(grid.devices_of("{devices=[2,1,2]<=[4] last_tile_dim_replicate}")), "TPU")
    assert cells == [["TPU 0,1"], ["TPU 2,3"]]
    assert grid.text(cells, False, 9).splitlines()[1] == "│ TPU 0,1 │"
    assert grid.text(cells, True, 9).count("\033[0m") == 2
    picture = grid.svg(cells)
    assert picture.count("<rect") == 2 and "TPU 2,3" in picture and picture.startswith("<svg")
