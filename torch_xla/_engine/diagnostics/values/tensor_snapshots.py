"""Save tensors of two runs in two folders and compare them: which layer differs first on another device."""

import os
from pathlib import Path

import torch
from torch import Tensor

from ... import config

_UNSET = object()
_chosen: object = _UNSET  # the folder, or `None`: nothing is saved


def configure(folder: str | os.PathLike[str] | None) -> None:
    """Set the folder of saved tensors; `None` saves none."""
    global _chosen
    _chosen = None if folder is None else Path(folder)


def folder_in_use() -> Path | None:
    """Return where tensors are saved."""
    if _chosen is _UNSET:
        named = config.comparison_directory()
        return Path(named) if named else None
    assert _chosen is None or isinstance(_chosen, Path)
    return _chosen


def save(name: str, tensor: Tensor, step: int | None) -> None:
    """Save `tensor` under its name, and in a folder of its step."""
    folder = folder_in_use()
    if folder is None:
        return
    file = folder / ("" if step is None else str(step)) / f"{name.replace(os.sep, '.')}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensor.detach().cpu(), file)


def compare_tensors(one: Tensor, other: Tensor, rtol: float, atol: float, most: int) -> str:
    """Return where two tensors differ, one line an element; nothing if they do not."""
    if one.shape != other.shape:
        return f"  shapes differ: {list(one.shape)} and {list(other.shape)}\n"
    rows = [f"  dtypes differ: {one.dtype} and {other.dtype}"] if one.dtype != other.dtype else []
    wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    if not (one.is_floating_point() or one.is_complex() or other.is_floating_point() or other.is_complex()):
        wide = torch.int64
    first, second = one.detach().cpu().to(wide), other.detach().cpu().to(wide)
    differ = ~torch.isclose(first, second, rtol=rtol, atol=atol, equal_nan=True)
    places = differ.nonzero().tolist()
    if places:
        gap = (first - second).abs()[differ]
        largest = gap[gap.isfinite()].max().item() if gap.isfinite().any() else float("inf")
        rows.append(f"  {len(places)} of {differ.numel()} elements differ, by {largest:.6g} at most:")
    for place in places[:most]:
        rows.append(f"    {place}: {_text(first[tuple(place)].item())} and {_text(second[tuple(place)].item())}")
    if len(places) > most:
        rows.append(f"    … and {len(places) - most} more")
    return "".join(f"{row}\n" for row in rows)


def _text(number: int | float | complex) -> str:
    return str(number) if isinstance(number, int) else f"{number:.9g}"


def compare_files(
    one: str | os.PathLike[str], other: str | os.PathLike[str], rtol: float, atol: float, most: int
) -> str:
    """Return where the tensors in two files differ."""
    return compare_tensors(torch.load(one, weights_only=True), torch.load(other, weights_only=True), rtol, atol, most)


def compare_folders(
    one: str | os.PathLike[str], other: str | os.PathLike[str], rtol: float, atol: float, most: int
) -> str:
    """Return where the tensors saved in two folders differ, those saved first first; nothing if they do not."""
    first, second = Path(one), Path(other)
    for folder in (first, second):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is no folder of saved tensors; configure() and save() make one.")
    ours = sorted(first.rglob("*.pt"), key=lambda file: (file.stat().st_mtime_ns, file))
    rows = []
    for file in ours:
        name = file.relative_to(first)
        if not (second / name).exists():
            rows.append(f"{name}: only in {first}\n")
            continue
        found = compare_files(file, second / name, rtol, atol, most)
        rows.append(f"{name}:\n{found}" if found else "")
    theirs = {file.relative_to(second) for file in second.rglob("*.pt")} - {file.relative_to(first) for file in ours}
    rows += [f"{name}: only in {second}\n" for name in sorted(theirs)]
    return "".join(rows)
