"""The page for maintainers about the patches, as written from the list."""

from itertools import groupby
from pathlib import Path

from torch_xla._engine.compat.patch import ALL, Patch
from torch_xla._engine.compat.replaced_internals import REPLACED

PAGE = Path(__file__).parents[2] / "docs" / "patches.md"

_MOST_NAMES = 4  # of a row

_HEAD = """# Patches: what we change in PyTorch and JAX, and until when

`python -m tests.patches --write` writes this page from two files of `torch_xla/_engine/compat/`: `patch_list.py`, and
`replaced_internals.py` for changes that replace no attribute. They have all names, and the test that fails without
each.
`python -m tests.patches torch.Tensor.is_xla` leaves one out and runs its test; without a name it does so for all. A new
release may fulfil the condition of a row: then remove the patch.

## Attributes

{attributes} attributes. Other devices keep what PyTorch does.

| attribute | why | can go when |
| --- | --- | --- |
"""

_WRITTEN = """
## Memory, lists and kernels

Each function of `torch_xla/_engine/compat/` that writes to memory checks that it is as expected, and refuses the
release if not.

| changed | by | why | can go when |
| --- | --- | --- | --- |
"""


def text() -> str:
    """Return the page: one row for attributes with the same reason."""
    rows = [_row(list(group)) for _, group in groupby(ALL, lambda patch: (patch.why, patch.until))]
    written = [f"| {each.what} | `{each.function}` | {each.why} | {each.until} |\n" for each in REPLACED]
    return _HEAD.format(attributes=len(ALL)) + "".join(rows) + _WRITTEN + "".join(written)


def _row(patches: list[Patch]) -> str:
    owner = patches[0].names[0].rpartition(".")[0]
    names = [f"`{patches[0].names[0]}`", *(f"`{patch.names[0].removeprefix(owner)}`" for patch in patches[1:])]
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES - 1 :] = [f"{len(names) - _MOST_NAMES + 1} more"]
    return f"| {', '.join(names)} | {patches[0].why} | {patches[0].until} |\n"
