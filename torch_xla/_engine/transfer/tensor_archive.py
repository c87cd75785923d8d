"""Save data with its tensors in separate files, so that one at a time is on the host."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..pytree.instances import rewrite
from ..pytree.nested import replaced
from .batch_reads import compute, identity, to_host


def write(data: object, path: str | os.PathLike[str], reference: Callable[[int], Any]) -> None:
    """Write `data` to `path`, and its n-th `xla` tensor to a separate file, replaced by `reference(n)` in `data`.

    An existing file at `path` does not change until everything is written.
    """
    target, folder = Path(path), _folder(path)
    new_target, new_folder = (place.with_name(f"{place.name}.new") for place in (target, folder))
    if new_folder.exists():
        shutil.rmtree(new_folder)
    new_folder.mkdir()
    torch.save(_without_tensors(data, new_folder, reference), new_target)
    if folder.exists():
        shutil.rmtree(folder)
    new_folder.rename(folder)
    new_target.replace(target)


def _without_tensors(data: object, folder: Path, reference: Callable[[int], object]) -> object:
    written: dict[Any, Any] = {}

    def write_each(tensors: list[torch.Tensor]) -> list[Any]:
        compute(tensors)
        references = []
        for tensor in tensors:
            key = (*identity(tensor), type(tensor), tensor.requires_grad)
            if key not in written:
                torch.save(to_host([tensor])[0], _file(folder, len(written)))
                written[key] = reference(len(written))
            references.append(written[key])
        return references

    return replaced(data, lambda tensor: tensor.device.type == "xla", write_each)


def read(path: str | os.PathLike[str], reference: type, **options: Any) -> object:
    """Read an archive that `write` wrote, with its tensors on the CPU. `options` are those of `torch.load`."""
    folder = _folder(path)
    data = torch.load(path, **options)
    return rewrite(
        data,
        lambda value: isinstance(value, reference),
        lambda found: torch.load(_file(folder, found.tid), **options),
    )


def _folder(path: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(path)}.tensors")


def _file(folder: Path, number: int) -> Path:
    # `number` may come from a file: it must not name another folder.
    return folder / f"tensor_{int(number)}.pt"
