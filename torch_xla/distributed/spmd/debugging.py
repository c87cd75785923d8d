"""Draw the division of tensors among devices."""

from pathlib import Path
from typing import Any

import torch

from ..._engine import diagnostics, runtime, step
from ..._engine.sharding import op_sharding_of


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    path: str | Path | None = None,
) -> str:
    """Print a table of the devices that hold each part of a tensor, and return it.

    `sharding` is in XLA's notation: `"{devices=[2,2]0,1,2,3}"`, `"{devices=[2,1,2]<=[4] last_tile_dim_replicate}"`,
    `"{replicated}"`. A cell names all devices that hold its part; `*` means all devices. A cell is `scale` times 12
    characters wide, at least `min_width`; the table is at most `max_width` wide if the names fit. With `path`, also
    write a picture (SVG). If more than two dimensions are divided, print a table for each part along the first of them.
    Raises `ValueError` for another text.

    >>> from torch_xla.distributed.spmd.debugging import visualize_sharding
    >>> table = visualize_sharding("{devices=[2,2]0,1,2,3}", use_color=False)
    ┌────────────┬────────────┐
    │   CPU 0    │   CPU 1    │
    ├────────────┼────────────┤
    │   CPU 2    │   CPU 3    │
    └────────────┴────────────┘
    """
    tables = diagnostics.grid_as_tables(diagnostics.grid_devices(sharding), runtime.selected_device_type())
    columns = len(tables[0][1][0])
    width = min(max(round(12 * scale), min_width), max(max_width // columns - 1, 1))
    drawn = diagnostics.grid_as_text(tables, use_color, width)
    if path is not None:
        Path(path).write_text(diagnostics.grid_as_svg(tables))
    print(drawn)
    return drawn


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> str:
    """Print the sharding of a tensor; see `visualize_sharding` for the other arguments.

    >>> import torch, torch_xla
    >>> from torch_xla.distributed.spmd.debugging import visualize_tensor_sharding
    >>> table = visualize_tensor_sharding(torch.ones(4, 4, device="xla"), use_color=False)
    ┌────────────┐
    │   CPU *    │
    └────────────┘
    """
    return visualize_sharding(construct_v1_sharding_str(t), **kwargs)


def construct_v1_sharding_str(t: torch.Tensor) -> str:
    """Return the sharding of a tensor in XLA's notation, with a list of devices, or `"{replicated}"`.

    >>> import torch, torch_xla
    >>> from torch_xla.distributed.spmd.debugging import construct_v1_sharding_str
    >>> construct_v1_sharding_str(torch.ones(4, device="xla"))
    '{replicated}'
    """
    return str(op_sharding_of(step.on_xla(getattr(t, "global_tensor", t))))
