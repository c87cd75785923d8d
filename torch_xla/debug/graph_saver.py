"""Write the recorded graph of tensors to files, one for each call."""

import os
from collections.abc import Sequence

import torch

from .._engine import diagnostics


def save_tensors_graph(save_dir: str | os.PathLike[str], name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Write the recorded computation of `tensors` to a new file in the folder `save_dir`, which is made if need be.

    The file is called `name`, `-`, the number of the look, and the language that `SAVE_GRAPH_FMT` asks for: `text` (the
    default), `dot` for Graphviz, or `hlo`. Nothing runs. Raises `ValueError` for another language.

    >>> import os, tempfile, torch, torch_xla
    >>> from torch_xla.debug import graph_saver
    >>> folder = tempfile.mkdtemp()
    >>> graph_saver.save_tensors_graph(folder, "loss", [torch.ones(3, device="xla").sum()])
    >>> [name] = os.listdir(folder)
    >>> name.startswith("loss-") and name.endswith(".text")
    True
    """
    diagnostics.save_graph(save_dir, name, tensors)
