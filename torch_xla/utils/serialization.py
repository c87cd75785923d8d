"""Saving more than fits into the host's memory: `import torch_xla.utils.serialization as xser`.

`xm.save` brings all tensors to the host and writes one file. Here each `xla` tensor is brought over, written to a file
of its own in the folder `PATH.tensors`, and let go before the next one.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from .._engine.transfer import tensor_archive
from ..core import xla_model as xm

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class TensorReference:
    """Stands in a saved file for the tensor in `PATH.tensors/tensor_<tid>.pt`."""

    tid: int


def save(data: Any, path: PathLike, master_only: bool = True, global_master: bool = False) -> None:
    """Saves `data` to `path`, its `xla` tensors one by one to files in the folder `<path>.tensors`. `load` reads both.

    `data` is any nested combination of Python objects. Tensors that are the same memory seen the same way, such as tied
    weights, are written once. With `master_only` one replica writes: that with ordinal 0 on each machine, or with
    `global_master` of the whole program; without it every replica writes, each to a path of its own. All wait for each
    other at the end.

    >>> import tempfile, torch, torch_xla.utils.serialization as xser
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     xser.save({"weight": torch.ones(2, device="xla"), "epoch": 3}, f"{folder}/state.pt")
    ...     xser.load(f"{folder}/state.pt")
    {'weight': tensor([1., 1.]), 'epoch': 3}
    """
    if not master_only or xm.is_master_ordinal(local=not global_master):
        tensor_archive.write(data, path, TensorReference)
    xm.rendezvous("torch_xla.utils.serialization.save")


def load(path: PathLike, *, weights_only: bool | None = None) -> Any:
    """Loads what `save` saved, with every tensor on the CPU.

    `weights_only` is that of `torch.load`: by default only tensors, containers and numbers are loaded, because other
    objects could run code. Pass `False` for files you trust.

    >>> import tempfile, torch, torch_xla.utils.serialization as xser
    >>> model = torch.nn.Linear(2, 1).to("xla")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     xser.save(model.state_dict(), f"{folder}/model.pt")
    ...     model.load_state_dict(xser.load(f"{folder}/model.pt"))
    <All keys matched successfully>
    """
    with torch.serialization.safe_globals([TensorReference]):
        return tensor_archive.read(path, TensorReference, weights_only=weights_only)
