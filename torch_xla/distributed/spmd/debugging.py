"""Pictures of how tensors are divided among devices."""

from pathlib import Path
from typing import Any

import torch

from ..._engine.diagnostics.sharding import sharding_grid
from ..._engine.runtime import platform_selection
from ..._engine.sharding.op_shardings import op_sharding_of
from ..._engine.step import pending_graph


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    path: str | Path | None = None,
) -> str:
    """Prints which devices have which part of a tensor, and returns what it printed.

    `sharding` is as XLA writes it: `"{devices=[2,2]0,1,2,3}"`, `"{devices=[2,1,2]<=[4] last_tile_dim_replicate}"`,
    `"{replicated}"`. A part that several devices have shows all of them; `*` are all devices there are. A cell is
    `scale` times 12 characters wide, at least `min_width`, and the table at most `max_width` if the names fit. With
    `path` the same is written there as a picture (SVG). Where more than two dimensions are divided there is a table for
    each part along the first of them. Raises `ValueError` for another text.

    >>> from torch_xla.distributed.spmd.debugging import visualize_sharding
    >>> table = visualize_sharding("{devices=[2,2]0,1,2,3}", use_color=False)
    ┌────────────┬────────────┐
    │   CPU 0    │   CPU 1    │
    ├────────────┼────────────┤
    │   CPU 2    │   CPU 3    │
    └────────────┴────────────┘
    """
    tables = sharding_grid.tables(sharding_grid.devices_of(sharding), platform_selection.device_type())
    columns = len(tables[0][1][0])
    width = min(max(round(12 * scale), min_width), max(max_width // columns - 1, 1))
    drawn = sharding_grid.text(tables, use_color, width)
    if path is not None:
        Path(path).write_text(sharding_grid.svg(tables))
    print(drawn)
    return drawn


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> str:
    """`visualize_sharding` of how a tensor lies, with its further arguments.

    >>> import torch, torch_xla
    >>> from torch_xla.distributed.spmd.debugging import visualize_tensor_sharding
    >>> table = visualize_tensor_sharding(torch.ones(4, 4, device="xla"), use_color=False)
    ┌────────────┐
    │   CPU *    │
    └────────────┘
    """
    return visualize_sharding(construct_v1_sharding_str(t), **kwargs)


def construct_v1_sharding_str(t: torch.Tensor) -> str:
    """How a tensor lies, as XLA writes it with each device by its number; `"{replicated}"` if each has all of it.

    >>> import torch, torch_xla
    >>> from torch_xla.distributed.spmd.debugging import construct_v1_sharding_str
    >>> construct_v1_sharding_str(torch.ones(4, device="xla"))
    '{replicated}'
    """
    return str(op_sharding_of(pending_graph.on_xla(getattr(t, "global_tensor", t))))
