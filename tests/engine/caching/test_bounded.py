"""Tables keep the latest entries of a program."""

from torch_xla._engine.caching.bounded import put_last


def test_of_more_than_the_most_the_first_leave_and_what_is_put_again_is_last() -> None:
    table: dict[int, str] = {}
    for number in range(16):
        assert put_last(table, number, str(number), 16) == str(number)
    put_last(table, 0, "again", 16)
    assert len(table) == 16
    put_last(table, 16, "16", 16)
    assert list(table) == [*range(4, 16), 0, 16] and table[0] == "again"


def test_one_place_is_that_of_the_last() -> None:
    table: dict[int, int] = {}
    for number in range(3):
        put_last(table, number, number, 1)
        assert table == {number: number}
