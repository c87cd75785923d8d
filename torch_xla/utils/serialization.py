"""Save more data than fits into the host's memory: `import torch_xla.utils.serialization as xser`.

`xm.save` copies all tensors to the host and writes one file. `save` of this module copies one `xla` tensor at a time,
writes it to its own file in the folder `PATH.tensors`, and releases it before the next one.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from .._engine import transfer
from ..core import xla_model as xm

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class TensorReference:
    """Represents, in a saved file, the tensor in `PATH.tensors/tensor_<tid>.pt`."""

    tid: int


def save(data: object, path: PathLike, master_only: bool = True, global_master: bool = False) -> None:
    """Save `data` to `path`, and its `xla` tensors one by one to files in `<path>.tensors`. `load` reads both.

    `data` is any nested combination of Python objects. Tensors that are the same view of the same memory, such as tied
    weights, are written once. With `master_only` the replica with ordinal 0 of each machine writes, or with
    `global_master` that of the whole program. Without `master_only` every replica writes, each to its own path. At the
    end, all replicas wait for each other.

    >>> import tempfile, torch, torch_xla.utils.serialization as xser
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     xser.save({"weight": torch.ones(2, device="xla"), "epoch": 3}, f"{folder}/state.pt")
    ...     xser.load(f"{folder}/state.pt")
    {'weight': tensor([1., 1.]), 'epoch': 3}
    """
    if not master_only or xm.is_master_ordinal(local=not global_master):
        transfer.write_archive(data, path, TensorReference)
    xm.rendezvous("torch_xla.utils.serialization.save")


def load(path: PathLike, *, weights_only: bool | None = None) -> Any:
    """Load a file that `save` wrote, with every tensor on the CPU.

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
        return transfer.read_archive(path, TensorReference, weights_only=weights_only)
