"""A sharding as XLA writes it, drawn: which part of a tensor lies on which devices."""

import re
from html import escape

import numpy as np

_TILES = re.compile(r"^\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|(\d[\d,]*))(.*)\}$")
_WHOLE = re.compile(r"^\{(replicated|manual|unknown)?\}$|^$")
_ONE = re.compile(r"^\{maximal device=(\d+)\}$")

# Told apart by readers who see few colours.
COLOURS = ("#4c78a8", "#f2a541", "#8a6fb0", "#59a14f", "#c8443a", "#9c755f", "#76b7b2", "#edc948")


def devices_of(sharding: str) -> np.ndarray:
    """The devices of each part: an array of one list of numbers for each part, in a grid of rows and columns.

    A tensor of one divided dimension has one row; where it has copies a list has several numbers. Raises `ValueError`
    for a text that is no sharding, and for one of more than two divided dimensions.
    """
    one = _ONE.match(sharding)
    if one:
        return _grid([[int(one[1])]], (1, 1))
    if _WHOLE.match(sharding):
        return _grid([[]], (1, 1))
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
    divided = [size for size in shape if size > 1]
    if len(divided) > 2:
        raise ValueError(
            f"visualize_sharding(): {sharding!r} divides {len(divided)} dimensions; one or two can be drawn."
        )
    first = bool(shape) and shape[0] > 1 and len(shape) > 1
    rows, columns = divided if len(divided) == 2 else (divided[0], 1) if divided and first else (1, *divided, 1)[:2]
    return _grid(ids.reshape(rows * columns, copies).tolist(), (rows, columns))


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _grid(lists: list[list[int]], shape: tuple[int, int]) -> np.ndarray:
    grid = np.empty(len(lists), dtype=object)
    grid[:] = lists
    return grid.reshape(shape)


def labels(grid: np.ndarray, platform: str) -> list[list[str]]:
    """What stands in each cell: "CPU 0,2", or the platform alone where each device has all."""
    return [[f"{platform} {','.join(map(str, ids))}" if ids else f"{platform} *" for ids in row] for row in grid]


def text(cells: list[list[str]], use_color: bool, width: int) -> str:
    """A table for a terminal, in which cells are at least so wide."""
    width = max(width, max(len(cell) for row in cells for cell in row) + 2)
    line = "─" * width
    count = len(cells[0])
    rows = ["┌" + "┬".join([line] * count) + "┐"]
    for index, row in enumerate(cells):
        shown = [_coloured(cell.center(width), index * count + place, use_color) for place, cell in enumerate(row)]
        rows.append("│" + "│".join(shown) + "│")
        rows.append("├" + "┼".join([line] * count) + "┤")
    rows[-1] = "└" + "┴".join([line] * count) + "┘"
    return "\n".join(rows)


def _coloured(cell: str, number: int, use_color: bool) -> str:
    if not use_color:
        return cell
    colour = COLOURS[number % len(COLOURS)].lstrip("#")
    red, green, blue = (int(colour[place : place + 2], 16) for place in (0, 2, 4))
    return f"\033[48;2;{red};{green};{blue}m\033[97m{cell}\033[0m"


def svg(cells: list[list[str]]) -> str:
    """The same as a picture."""
    width, height = 120, 60
    body = []
    for row, line in enumerate(cells):
        for column, cell in enumerate(line):
            x, y = column * width, row * height
            colour = COLOURS[(row * len(line) + column) % len(COLOURS)]
            body.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" stroke="white"/>')
            body.append(
                f'<text x="{x + width / 2}" y="{y + height / 2 + 5}" fill="white" font-family="sans-serif" '
                f'font-size="14" text-anchor="middle">{escape(cell)}</text>'
            )
    size = f"0 0 {width * len(cells[0])} {height * len(cells)}"
    return f'<svg viewBox="{size}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>\n'
