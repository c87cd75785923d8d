"""Draw a sharding, given as XLA writes it: which part of a tensor is on which devices."""

import re
from collections.abc import Sequence
from html import escape

import numpy as np

_TILES = re.compile(r"^\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|(\d[\d,]*))(.*)\}$")
_WHOLE = re.compile(r"^\{(replicated|manual|unknown)?\}$|^$")
_ONE = re.compile(r"^\{maximal device=(\d+)\}$")

# A table with its title.
Table = tuple[str, list[list[str]]]

# Colours that colour-blind readers distinguish.
COLOURS = ("#4c78a8", "#f2a541", "#8a6fb0", "#59a14f", "#c8443a", "#9c755f", "#76b7b2", "#edc948")


def devices_of(sharding: str) -> np.ndarray:
    """Return the devices of each part: an array with a list of numbers for each part, of as many dimensions as the
    tensor.

    Where it has copies a list has several numbers. Raises `ValueError` for a text that is no sharding.
    """
    one = _ONE.match(sharding)
    if one:
        return _grid([[int(one[1])]], [1])
    if _WHOLE.match(sharding):
        return _grid([[]], [1])
    found = _TILES.match(sharding)
    if found is None:
        raise ValueError(
            f"visualize_sharding(): {sharding!r} is no sharding as XLA writes it, such as '{{devices=[2,1]0,1}}', "
            "'{devices=[2,2]<=[4]}' or '{replicated}'."
        )
    shape = _numbers(found[1])
    ids = np.array(_numbers(found[4])) if found[4] else np.arange(np.prod(_numbers(found[2])))
    if found[2]:
        ids = ids.reshape(_numbers(found[2]))
        ids = ids.transpose(_numbers(found[3])) if found[3] else ids
    if ids.size != np.prod(shape):
        raise ValueError(f"visualize_sharding(): {sharding!r} has {ids.size} devices for tiles {shape}.")
    copies = shape.pop() if "replicate" in found[5] else 1
    return _grid(ids.reshape(-1, copies).tolist(), shape)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _grid(lists: list[list[int]], shape: list[int]) -> np.ndarray:
    grid = np.empty(len(lists), dtype=object)
    grid[:] = lists
    return grid.reshape(shape)


def tables(grid: np.ndarray, platform: str) -> list[Table]:
    """Return the parts as tables, whose rows and columns are the last two dimensions that are divided.

    There is one for each part along the dimensions before those. A cell has "CPU 0,2", or the platform alone where each
    device has all.
    """
    divided = [dim for dim, size in enumerate(grid.shape) if size > 1]
    before = divided[:-2]
    is_column = len(divided) == 1 and divided[0] == 0 and grid.ndim > 1
    rows, columns = (grid.shape[dim] for dim in divided[-2:]) if len(divided) > 1 else (grid.size, 1)
    if len(divided) < 2 and not is_column:
        rows, columns = columns, rows
    found = []
    for place, part in zip(
        np.ndindex(*(grid.shape[dim] for dim in before)), grid.reshape(-1, rows, columns), strict=True
    ):
        title = ", ".join(
            f"part {index} of {grid.shape[dim]} along dimension {dim}" for dim, index in zip(before, place, strict=True)
        )
        cells = [[f"{platform} {','.join(map(str, ids))}" if ids else f"{platform} *" for ids in row] for row in part]
        found.append((title, cells))
    return found


def text(shown: Sequence[Table], use_color: bool, width: int) -> str:
    """Return tables for a terminal, in which cells have at least this width."""
    width = max(width, max(len(cell) for _, cells in shown for row in cells for cell in row) + 2)
    lines: list[str] = []
    first = 0
    for title, cells in shown:
        lines += [title, *_table(cells, use_color, width, first)] if title else _table(cells, use_color, width, first)
        first += len(cells) * len(cells[0])
    return "\n".join(lines)


def _table(cells: list[list[str]], use_color: bool, width: int, first: int) -> list[str]:
    line = "─" * width
    count = len(cells[0])
    rows = ["┌" + "┬".join([line] * count) + "┐"]
    for index, row in enumerate(cells):
        numbers = range(first + index * count, first + (index + 1) * count)
        shown = [_coloured(cell.center(width), number, use_color) for number, cell in zip(numbers, row, strict=True)]
        rows.append("│" + "│".join(shown) + "│")
        rows.append("├" + "┼".join([line] * count) + "┤")
    rows[-1] = "└" + "┴".join([line] * count) + "┘"
    return rows


def _coloured(cell: str, number: int, use_color: bool) -> str:
    if not use_color:
        return cell
    colour = COLOURS[number % len(COLOURS)].lstrip("#")
    red, green, blue = (int(colour[place : place + 2], 16) for place in (0, 2, 4))
    return f"\033[48;2;{red};{green};{blue}m\033[97m{cell}\033[0m"


def svg(shown: Sequence[Table]) -> str:
    """Return the same as a picture."""
    width, height, above, y, number = 120, 60, 24, 0, 0
    body = []
    for title, cells in shown:
        if title:
            body.append(_words(0, y + above - 8, title, "#555", "start"))
            y += above
        for line in cells:
            for column, cell in enumerate(line):
                x, colour = column * width, COLOURS[number % len(COLOURS)]
                body.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" stroke="white"/>')
                body.append(_words(x + width / 2, y + height / 2 + 5, cell, "white", "middle"))
                number += 1
            y += height
    widest = max(max(width * len(cells[0]), 8 * len(title)) for title, cells in shown)
    return f'<svg viewBox="0 0 {widest} {y}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>\n'


def _words(x: float, y: float, words: str, colour: str, anchor: str) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-family="sans-serif" font-size="14" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )
