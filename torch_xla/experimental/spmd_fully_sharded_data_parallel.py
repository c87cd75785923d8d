"""FSDPv2: parameters and activations are divided along one axis of a mesh, and XLA's partitioner does the rest."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from .._engine.compat.names.torch import address_of, version_of
from .._engine.tensor import delayed_by_barrier as delayed
from ..distributed import spmd as xs
from ..distributed.spmd.tensor_sharding import parts_along
from ..distributed.spmd.xla_sharded_tensor import is_divided

AXIS = "fsdp"


class SpmdFullyShardedDataParallel(nn.Module):
    """Divide the parameters of `module` along the axis "fsdp" of a mesh, and its output along the batch.

    A module on the CPU is first moved to `xla`.

    Each parameter is divided along the longest of its dimensions that the axis divides evenly. A large parameter
    without such a dimension is divided along its longest dimension. A parameter that is already marked, for tensor
    parallelism, does not change. XLA gathers a layer's parameters where it computes, and scatters gradients. The
    output, or the first tensor of a tuple, is divided along its first dimension by `extra_data_axis`, if given, and
    "fsdp"; `shard_output(output, mesh)` marks outputs of another form.

    Gathered parameters are dropped after a layer's forward pass and gathered again for its backward pass. With
    `reshard_after_forward=False` they are kept: this saves a third of the communication, but all layers are whole at
    the end of the forward pass.

    `mesh` is by default the global mesh. `auto_wrap_policy(module, recurse, numel)` decides which submodules are
    wrapped too, by `auto_wrapper_callable(module, mesh=..., extra_data_axis=...)`, by default this class. Names in a
    `state_dict` contain `_orig_module.` for each wrapper. Attributes are those of the wrapped module.

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
        shard_output: Callable[[object, xs.Mesh], object] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
        reshard_after_forward: bool = True,
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
        if any(parameter.device.type == "cpu" for parameter in module.parameters()):
            module.to("xla")  # Transformers' Trainer leaves that to the wrapper
        if auto_wrap_policy is not None:
            wrap = auto_wrapper_callable or SpmdFullyShardedDataParallel
            options: dict[str, object] = {"mesh": mesh, "extra_data_axis": extra_data_axis}
            if not reshard_after_forward:
                options["reshard_after_forward"] = False
            _wrap_inside(module, auto_wrap_policy, wrap, options)
        self._orig_module = module
        self._mesh = mesh
        self._shard_output = shard_output
        self._reshard_after_forward = reshard_after_forward
        self._data_axes = (extra_data_axis, AXIS) if extra_data_axis else AXIS
        for parameter in _own_parameters(module):
            _divide(parameter, mesh)

    @property
    def module(self) -> nn.Module:
        """Return the wrapped module."""
        return self._orig_module

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Return the result of the module, with its output divided."""
        with self._gathered_again():
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

    def _gathered_again(self) -> AbstractContextManager[object]:
        """Return a context whose backward pass reads parameters again, instead of gathered values."""
        if not self._reshard_after_forward or torch.compiler.is_compiling():
            return nullcontext()
        own = {address_of(parameter.untyped_storage()) for parameter in self._orig_module.parameters()}

        def pack(tensor: torch.Tensor) -> _Parameter | torch.Tensor:
            is_parameter = tensor.device.type == "xla" and address_of(tensor.untyped_storage()) in own
            return _Parameter(tensor, version_of(tensor)) if is_parameter else tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, _read_again)

    def __getattr__(self, name: str) -> torch.Tensor | torch.nn.Module:
        """Return an attribute of this module, or of the wrapped one."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_orig_module":
                raise
            return getattr(self._orig_module, name)

    def __getitem__(self, key: int) -> torch.nn.Module:
        """Return an element of a wrapped `nn.Sequential`."""
        return self._orig_module[key]  # type: ignore[index]


class _Parameter(NamedTuple):
    """The data that the backward pass needs to read a parameter, or a view of it, again."""

    tensor: torch.Tensor
    version: int


def _read_again(saved: _Parameter | torch.Tensor) -> torch.Tensor:
    if not isinstance(saved, _Parameter):
        return saved  # type: ignore[no-any-return]
    if version_of(saved.tensor) != saved.version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a "
            f"parameter of shape {list(saved.tensor.shape)} is at version {version_of(saved.tensor)}; expected version "
            f"{saved.version} instead. Call backward() before the optimizer's step."
        )
    (again,) = delayed([saved.tensor])
    return again


def _parts(mesh: xs.Mesh, axes: str | tuple[str, ...]) -> int:
    names = (axes,) if isinstance(axes, str) else axes
    return parts_along(mesh, tuple(list(mesh.shape()).index(name) for name in names))


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that no inner wrapper has divided."""
    if isinstance(module, SpmdFullyShardedDataParallel):
        return
    yield from module.parameters(recurse=False)
    for child in module.children():
        yield from _own_parameters(child)


def _divide(parameter: nn.Parameter, mesh: xs.Mesh) -> None:
    if not parameter.dim() or is_divided(parameter):
        return
    parts = _parts(mesh, AXIS)
    fitting = [dim for dim, length in enumerate(parameter.shape) if length and length % parts == 0]
    if not fitting and parameter.numel() < _WORTH_PADDING:
        return
    longest = max(fitting or range(parameter.dim()), key=lambda dim: parameter.shape[dim])
    xs.mark_sharding(parameter, mesh, tuple(AXIS if dim == longest else None for dim in range(parameter.dim())))


# A parameter with at least this number of elements is divided even if padding is needed: copies would cost more.
_WORTH_PADDING = 1 << 16


def _wrap_inside(
    module: nn.Module, policy: Callable[..., bool], wrap: Callable[..., nn.Module], options: Mapping[str, object]
) -> int:
    """Wrap the modules in `module` that the policy chooses, and return the number of their parameters' elements."""
    wrapped = 0
    for name, child in module.named_children():
        size = sum(parameter.numel() for parameter in child.parameters())
        inside = _wrap_inside(child, policy, wrap, options) if policy(child, True, size) else 0
        if policy(child, False, size - inside):
            setattr(module, name, wrap(child, **options))
            inside = size
        wrapped += inside
    return wrapped
