"""FSDPv2: parameters and activations divided along one axis of a mesh, the partitioner doing the rest."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..distributed import spmd as xs
from ..distributed.spmd.tensor_sharding import parts_along
from ..distributed.spmd.xla_sharded_tensor import is_divided

AXIS = "fsdp"


class SpmdFullyShardedDataParallel(nn.Module):
    """Divides the parameters of `module`, on `xla`, along the axis "fsdp" of a mesh, and its output along the batch.

    Each parameter is divided in its longest dimension that the axis divides evenly; one that was marked before, for
    tensor parallelism, stays as it is. XLA gathers a layer's parameters where it computes, and scatters gradients. The
    output, or the first tensor of a tuple, is divided along its first dimension by "fsdp", and by `extra_data_axis`
    outside of it if there is one; `shard_output(output, mesh)` marks outputs of another form.

    `mesh` is by default the global one. `auto_wrap_policy(module, recurse, numel)` says which modules inside are
    wrapped too, by `auto_wrapper_callable(module, mesh=..., extra_data_axis=...)`, which is this class by default. In
    a `state_dict` names have `_orig_module.` in the place of each wrapper. Attributes are those of the wrapped module.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2
    >>> model = FSDPv2(torch.nn.Linear(4, 2).to("xla"), xs.get_1d_mesh("fsdp"))
    >>> model(torch.ones(3, 4, device="xla")).shape, list(model.state_dict())
    (torch.Size([3, 2]), ['_orig_module.weight', '_orig_module.bias'])
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: xs.Mesh | None = None,
        shard_output: Callable[[Any, xs.Mesh], object] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ) -> None:
        super().__init__()
        mesh = mesh or xs.get_global_mesh()
        if mesh is None:
            raise ValueError(
                "SpmdFullyShardedDataParallel(): there is no mesh. Give one with an axis 'fsdp', or set it by "
                "torch_xla.distributed.spmd.set_global_mesh."
            )
        for axis in (AXIS, *([extra_data_axis] if extra_data_axis else [])):
            if mesh.get_axis_name_idx(axis) is None:
                raise ValueError(f"SpmdFullyShardedDataParallel(): {mesh} has no axis {axis!r}")
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise ValueError("SpmdFullyShardedDataParallel(): the module is wrapped already")
        if auto_wrap_policy is not None:
            wrap = auto_wrapper_callable or SpmdFullyShardedDataParallel
            _wrap_inside(module, auto_wrap_policy, wrap, {"mesh": mesh, "extra_data_axis": extra_data_axis})
        self._orig_module = module
        self._mesh = mesh
        self._shard_output = shard_output
        self._data_axes = (extra_data_axis, AXIS) if extra_data_axis else AXIS
        for name, parameter in _own_parameters(module):
            _divide(name, parameter, mesh)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives, with its output divided."""
        output = self._orig_module(*args, **kwargs)
        if self._shard_output is not None:
            self._shard_output(output, self._mesh)
            return output
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(first, torch.Tensor):
            raise RuntimeError(
                f"SpmdFullyShardedDataParallel: the output of {type(self._orig_module).__name__} is a "
                f"{type(output).__name__}, neither a tensor nor a tuple that begins with one. Give shard_output=, a "
                f"function of output and mesh that marks it, such as "
                f"lambda output, mesh: xs.mark_sharding(output.logits, mesh, ('fsdp', None, None))."
            )
        if first.dim() and first.size(0) % _parts(self._mesh, self._data_axes) == 0:
            xs.mark_sharding(first, self._mesh, (self._data_axes, *[None] * (first.dim() - 1)))
        return output

    def __getattr__(self, name: str) -> Any:
        """An attribute of this module, or of the wrapped one."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_orig_module":
                raise
            return getattr(self._orig_module, name)

    def __getitem__(self, key: int) -> Any:
        """A part of a wrapped `nn.Sequential`."""
        return self._orig_module[key]  # type: ignore[index]


def _parts(mesh: xs.Mesh, axes: str | tuple[str, ...]) -> int:
    names = (axes,) if isinstance(axes, str) else axes
    return parts_along(mesh, tuple(list(mesh.shape()).index(name) for name in names))


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Those that no wrapper inside has divided."""
    if isinstance(module, SpmdFullyShardedDataParallel):
        return
    yield from module.named_parameters(recurse=False)
    for name, child in module.named_children():
        for inside, parameter in _own_parameters(child):
            yield f"{name}.{inside}", parameter


def _divide(name: str, parameter: nn.Parameter, mesh: xs.Mesh) -> None:
    if not parameter.dim() or is_divided(parameter):
        return
    parts = _parts(mesh, AXIS)
    fitting = [dim for dim, length in enumerate(parameter.shape) if length and length % parts == 0]
    if not fitting:
        if parameter.numel() >= _WORTH_TELLING:
            warnings.warn(
                f"SpmdFullyShardedDataParallel: {name} of shape {list(parameter.shape)} stays whole on each device: "
                f"the {parts} devices along 'fsdp' divide none of its dimensions. Pad one of them.",
                stacklevel=3,
            )
        return
    longest = max(fitting, key=lambda dim: parameter.shape[dim])
    xs.mark_sharding(parameter, mesh, tuple(AXIS if dim == longest else None for dim in range(parameter.dim())))


# So many elements a parameter has whose copies on each device somebody may want to know of.
_WORTH_TELLING = 1 << 16


def _wrap_inside(
    module: nn.Module, policy: Callable[..., bool], wrap: Callable[..., nn.Module], options: dict[str, Any]
) -> int:
    """Wraps the modules in `module` that the policy chooses; how many elements of parameters they have together."""
    wrapped = 0
    for name, child in module.named_children():
        size = sum(parameter.numel() for parameter in child.parameters())
        inside = _wrap_inside(child, policy, wrap, options) if policy(child, True, size) else 0
        if policy(child, False, size - inside):
            setattr(module, name, wrap(child, **options))
            inside = size
        wrapped += inside
    return wrapped
