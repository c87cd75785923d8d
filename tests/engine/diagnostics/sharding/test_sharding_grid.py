import pytest

from torch_xla._engine.diagnostics.sharding import sharding_grid


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("{devices=[2,2]0,1,2,3}", "0 1/2 3"),
        ("{devices=[2,2]<=[4]}", "0 1/2 3"),
        ("{devices=[2,2]<=[2,2]T(1,0)}", "0 2/1 3"),
        ("{devices=[4]0,1,2,3}", "0 1 2 3"),
        ("{devices=[1,4]<=[4]}", "0 1 2 3"),
        ("{devices=[4,1]<=[4]}", "0/1/2/3"),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "0,1/2,3"),
        ("{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "0,1/2,3"),
        ("{devices=[1,2,1,2]<=[4]}", "0 1/2 3"),
        ("{replicated}", "*"),
        ("", "*"),
        ("{maximal device=3}", "3"),
    ],
)
def test_each_part_has_its_devices(sharding: str, expected: str) -> None:
    ((title, cells),) = sharding_grid.tables(sharding_grid.devices_of(sharding), "CPU")
    assert title == "" and "/".join(" ".join(cell[4:] for cell in row) for row in cells) == expected


def test_of_three_divided_dimensions_there_is_a_table_for_each_part_along_the_first() -> None:
    shown = sharding_grid.tables(sharding_grid.devices_of("{devices=[2,1,2,3,2]<=[24] last_tile_dim_replicate}"), "TPU")
    assert [title for title, _ in shown] == [f"part {index} of 2 along dimension 0" for index in range(2)]
    assert shown[0][1] == [["TPU 0,1", "TPU 2,3", "TPU 4,5"], ["TPU 6,7", "TPU 8,9", "TPU 10,11"]]
    assert shown[1][1][1] == ["TPU 18,19", "TPU 20,21", "TPU 22,23"]
    lines = sharding_grid.text(shown, False, 9).splitlines()
    assert lines[0] == shown[0][0] and lines[6] == shown[1][0] and len(lines) == 12
    picture = sharding_grid.svg(shown)
    assert picture.count("<rect") == 12 and shown[1][0] in picture
    assert len(sharding_grid.tables(sharding_grid.devices_of("{devices=[2,2,2,2]<=[16]}"), "CPU")) == 4


def test_what_cannot_be_drawn_is_told() -> None:
    with pytest.raises(ValueError, match=r"'rows' is no sharding as XLA writes it, such as '\{devices"):
        sharding_grid.devices_of("rows")
    with pytest.raises(ValueError, match="has 3 devices for tiles"):
        sharding_grid.devices_of("{devices=[2,2]0,1,2}")


def test_tables_and_pictures_have_a_cell_for_each_part() -> None:
    shown = sharding_grid.tables(sharding_grid.devices_of("{devices=[2,1,2]<=[4] last_tile_dim_replicate}"), "TPU")
    assert shown == [("", [["TPU 0,1"], ["TPU 2,3"]])]
    assert sharding_grid.text(shown, False, 9).splitlines()[1] == "│ TPU 0,1 │"
    assert sharding_grid.text(shown, True, 9).count("\033[0m") == 2
    picture = sharding_grid.svg(shown)
    assert picture.count("<rect") == 2 and "TPU 2,3" in picture and picture.startswith("<svg")
