"""Where `torch.distributed.tensor` hands over for a mesh of `xla` devices."""

from typing import Any, NoReturn

from ..._engine.client import processes
from ..._engine.distributed import backend


def xla_distribute_tensor(tensor: Any, device_mesh: Any, placements: Any = None) -> Any:
    """`torch.distributed.tensor.distribute_tensor` over the processes of a program: a `DTensor`.

    Alone, where a mesh means devices of this process, it raises `NotImplementedError`: that is not in this version.
    """
    if processes.process_count() == 1:
        _refuse("distribute_tensor")
    return backend.distribute_tensor(tensor, device_mesh, placements)


def xla_distribute_module(
    module: Any, device_mesh: Any = None, partition_fn: Any = None, input_fn: Any = None, output_fn: Any = None
) -> Any:
    """`torch.distributed.tensor.distribute_module` over the processes of a program: the module, of `DTensor`s.

    Alone, where a mesh means devices of this process, it raises `NotImplementedError`: that is not in this version.
    """
    if processes.process_count() == 1:
        _refuse("distribute_module")
    return backend.distribute_module(module, device_mesh, partition_fn, input_fn, output_fn)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}(): distributed tensors on a mesh of xla devices are not in this version of torch_xla. On one device "
        f"use the tensor or the module as it is."
    )
