"""`XlaFullyShardedDataParallel`: parameters, gradients and optimizer states divided among processes."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

import torch
from torch import nn

import torch_xla

from ..._engine import distributed
from ..._engine.compat.names.torch import buffers_of
from ..._engine.distributed import ShardedUnit, ShardLayout
from ..._engine.distributed import UnitExchange as Exchange
from ..._engine.distributed import UnitManner as Manner
from ..._engine.distributed.fsdp.module_sharding import divide, materialize
from ..._engine.pytree import collected_tensors as collected
from ..._engine.pytree import with_tensors_replaced as replaced
from ...core import collectives
from .dummies import dummy_all_reduce, gather, reduce_scatter
from .wrap import recursive_wrap
from .xla_flatten_params_wrapper import XlaFlattenParamsWrapper

# Views are exact always: there is nothing to disable.
XLA_DISABLE_FUNCTIONALIZATION = False
FLOAT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]

Groups = Sequence[Sequence[int]] | None


class TrainingState(Enum):
    """The phases of a step of a `XlaFullyShardedDataParallel`."""

    IDLE = auto()
    FORWARD = auto()
    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


class XlaFullyShardedDataParallel(nn.Module):
    """Divide the parameters of a module among the processes, and gather them while the module needs them.

    Each process keeps one shard of every parameter, of its gradient and of its optimizer state. A forward pass gathers
    the parameters and then frees them. The backward pass gathers them again, and leaves in each shard the sum of the
    gradients divided by the number of processes. All of this is in the step's program. Wrap submodules too, by hand or
    by `auto_wrap_policy`; otherwise all parameters are whole at the same time.

    Create the optimizer after wrapping, and call `optimizer.step()`: the gradients are already averaged. Clip gradients
    by `clip_grad_norm_` of the outermost unit, or by PyTorch's function for its parameters. To save a model, see
    `get_shard_metadata`.

    Args:
        module: on the CPU, on `xla`, or on the meta device. Only the shards of its parameters are moved to the device,
            so a model may be larger than the device's memory. If the processes start from different values, each
            process contributes its own shard.
        reshard_after_forward: gather again for the backward pass, instead of keeping the whole parameters for it.
        flatten_parameters: combine all parameters of one dtype to one flat parameter, for fewer messages.
        execute_sharding_on_init: sync in the constructor, so that whole parameters are freed at once.
        optimization_barrier_in_forward, optimization_barrier_in_backward: gather the parameters of a unit only after
            the earlier units of the pass are computed; otherwise the compiler may gather everything at the beginning.
        sync_on_finalization: sync at the end of each backward pass of the outermost unit.
        disable_reshard_on_root: the outermost unit keeps its parameters for the backward pass.
        compute_dtype: the dtype of gathered parameters and of floating point inputs; `None` keeps their dtype.
        buffer_dtype: the dtype of floating point buffers; `None` means `compute_dtype`.
        fp32_reduce_scatter: sum gradients in float32, whatever `compute_dtype` is.
        sharding_groups: the groups of processes that divide parameters, as `groups` of `xm.all_gather`. It requires
            `sharding_rank`, the index of this process in its group, and `sharding_world_size`, the group's size.
        shard_param_on_dim_0: shards are rows of the parameter instead of pieces of the flattened parameter.
        pin_layout_in_collective_ops: accepted and not used: all arrays of a program have the same memory layout.
        reduce_scatter_bucket_size_mb: sum gradients in messages of up to this size; 0 means one message for each.
        coalesce_all_gather_ops: gather all parameters of a unit in one message for each dtype.
        auto_wrap_policy: which submodules to wrap as separate units (`torch_xla.distributed.fsdp.wrap`).
        auto_wrapper_callable: wraps these submodules; called like this class, which is the default.
        param_init_fn: materializes and initializes a module on the meta device; by default `reset_parameters()` does.

    The number of elements of a shard of a flat parameter is a multiple of `_shard_size_multiple`. Of the other private
    arguments, `_use_xla_patched_linear` is not needed, since a parameter that any operation saves for the backward pass
    is recognised. Arguments that begin with `_debug` leave out messages, or the forward pass, to show their cost.

    Raises `ValueError` for a group without its rank and size, and for parameters shared between units.

    >>> import torch, torch_xla
    >>> from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
    >>> model = FSDP(torch.nn.Sequential(FSDP(torch.nn.Linear(4, 8)), torch.nn.Linear(8, 2)))
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> model(torch.ones(3, 4, device="xla")).sum().backward()
    >>> optimizer.step()
    >>> len(list(model.parameters()))
    4
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Groups = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        _shard_size_multiple: int = 128,
        _use_xla_patched_linear: bool = True,
        _debug_dummy_forward_pass: bool = False,
        _debug_msg: str = "xla_fsdp",
        _debug_print: bool = False,
        _debug_dummy_all_gather_op: bool = False,
        _debug_dummy_all_reduce_op: bool = False,
        _debug_dummy_reduce_scatter_op: bool = False,
        _debug_dummy_optimization_barrier_op: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "module", "__class__")}
        super().__init__()
        self.reshard_after_forward, self.flatten_parameters = reshard_after_forward, flatten_parameters
        self.disable_reshard_on_root, self.sync_on_finalization = disable_reshard_on_root, sync_on_finalization
        self.compute_dtype, self.buffer_dtype = compute_dtype, buffer_dtype or compute_dtype
        self.fp32_reduce_scatter, self.shard_param_on_dim_0 = fp32_reduce_scatter, shard_param_on_dim_0
        self.xla_device = torch_xla.device()
        self.sharding_groups = sharding_groups
        self.rank, self.world_size = _place(sharding_groups, sharding_rank, sharding_world_size)
        self.training_state = TrainingState.IDLE
        self._is_root = True
        self._dummy_forward, self._debug_msg, self._debug_print = _debug_dummy_forward_pass, _debug_msg, _debug_print
        self._all_reduce = dummy_all_reduce if _debug_dummy_all_reduce_op else collectives.all_reduce
        if auto_wrap_policy is not None:
            _wrap_inside(module, auto_wrap_policy, auto_wrapper_callable, given)
        materialize(module, self.xla_device, param_init_fn)  # what no unit inside has made and divided already
        for each in module.modules():
            if isinstance(each, XlaFullyShardedDataParallel):
                each._is_root = False
        self._fsdp_wrapped_module = XlaFlattenParamsWrapper(module)
        self._unit = self._divided(module, _shard_size_multiple)
        self._move_buffers(module)
        self._order_and_exchange(**given)
        if execute_sharding_on_init:
            torch_xla.sync()

    def _order_and_exchange(self, **given: Any) -> None:
        barriers = not given["_debug_dummy_optimization_barrier_op"]
        manner, talk = self._unit.manner, self._unit.exchange
        manner.ordered_forward = barriers and given["optimization_barrier_in_forward"]
        manner.ordered_backward = barriers and given["optimization_barrier_in_backward"]
        talk.gather_mebibytes = math.inf if given["coalesce_all_gather_ops"] else 0
        talk.reduce_mebibytes = given["reduce_scatter_bucket_size_mb"] or 0
        if given["_debug_dummy_all_gather_op"]:
            talk.gather = gather
        if given["_debug_dummy_reduce_scatter_op"]:
            talk.reduce_scatter = reduce_scatter

    def _divided(self, module: nn.Module, multiple: int) -> ShardedUnit:
        layout_of = partial(
            ShardLayout, count=self.world_size, on_dim_0=self.shard_param_on_dim_0 and not self.flatten_parameters,
            multiple=multiple,
        )  # fmt: skip
        handles = divide(module, self._fsdp_wrapped_module, self.xla_device, layout_of, self.rank,
                         self.flatten_parameters)  # fmt: skip
        self._fsdp_wrapped_module._handles = handles if self.flatten_parameters else ()
        manner = Manner(self.compute_dtype, self.fp32_reduce_scatter)
        manner.before, manner.after = _divisors(self.world_size)
        talk = Exchange(distributed.groups_of(self.sharding_groups), self.world_size, self.rank)
        return ShardedUnit(handles, talk, manner, at_end=self._finalize)

    def _move_buffers(self, module: nn.Module) -> None:
        for each in module.modules():
            for name, buffer in buffers_of(each).items():
                if buffer is not None:
                    dtype = self.buffer_dtype if buffer.is_floating_point() else None
                    buffers_of(each)[name] = buffer.to(self.xla_device, dtype)

    @property
    def module(self) -> XlaFlattenParamsWrapper:
        """Return the wrapped module, in a wrapper whose own `module` is the user's."""
        return self._fsdp_wrapped_module

    @property
    def sharded_params(self) -> list[nn.Parameter]:
        """Return the shards of this unit's parameters, without those of inner units."""
        return [handle.shard for handle in self._unit.handles]

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """Return the parameters that have a gradient, including those of inner units."""
        return [parameter for parameter in self.parameters() if parameter.grad is not None]

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Divide gradients by `pre` before they are summed over the processes, and divide the sum by `post`.

        By default their product is the number of processes. With `recursive`, set them for inner units too.
        """
        for unit in self._units() if recursive else [self]:
            unit._unit.manner.before, unit._unit.manner.after = pre, post

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, groups: Groups = None) -> torch.Tensor:
        """Scale all gradients so that their norm, over all processes of a group, is at most `max_norm`.

        Returns the norm before scaling as a tensor without dimensions on the device, without a wait. Call this on the
        outermost unit. `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` combines the norms of shards, too.
        """
        if not self._is_root:
            raise RuntimeError("clip_grad_norm_() must be called on the outermost XlaFullyShardedDataParallel")
        gradients = [parameter.grad for parameter in self.params_with_grad if parameter.grad is not None]
        norm_type = float(norm_type)
        is_highest = math.isinf(norm_type)
        zero = torch.zeros((), device=self.xla_device)
        norms = [torch.linalg.vector_norm(gradient.float(), norm_type) for gradient in gradients]
        own = torch.stack([zero, *norms])
        part = own.max() if is_highest else own.pow(norm_type).sum()
        reduction = collectives.REDUCE_MAX if is_highest else collectives.REDUCE_SUM
        (total,) = self._all_reduce(reduction, [part], groups=groups)
        norm = total if is_highest else total.pow(1.0 / norm_type)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        return norm

    def extra_repr(self) -> str:
        """Return the most important arguments, for `repr`."""
        return (
            f"world_size={self.world_size}, rank={self.rank}, reshard_after_forward={self.reshard_after_forward}, "
            f"flatten_parameters={self.flatten_parameters}, compute_dtype={self.compute_dtype}"
        )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each process within a `with` block, without communication.

        The next pass outside of the block sums them over the processes. Each process keeps whole gradients for that,
        as much memory as a replica's. Call this on the outermost unit.
        """
        if not self._is_root:
            raise RuntimeError("no_sync() must be called on the outermost XlaFullyShardedDataParallel")
        units = list(self._units())
        before = [each._unit.reduces for each in units]
        for each in units:
            each._unit.reduces = False
        try:
            yield
        finally:
            for each, reduces in zip(units, before, strict=True):
                each._unit.reduces = reduces

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Call the module with whole parameters."""
        self.training_state = TrainingState.FORWARD
        if self._debug_print:
            collectives.master_print(f"{self._debug_msg}: forward")
        dtype = self.compute_dtype
        if dtype is not None:
            args, kwargs = apply_to_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, (args, kwargs))
        reshards = self.reshard_after_forward and not (self._is_root and self.disable_reshard_on_root)
        with self._unit.in_forward(reshards) as whole:
            outputs = self._sum_of_means(whole) if self._dummy_forward else self._fsdp_wrapped_module(*args, **kwargs)
        if torch.is_grad_enabled():
            for tensor in collected(outputs, lambda tensor: tensor.requires_grad):
                tensor.register_hook(self._begin_backward)
        self.training_state = TrainingState.IDLE
        return outputs

    def _sum_of_means(self, whole: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([tensor.mean() for tensor in whole if tensor.is_floating_point()]).sum()

    def _begin_backward(self, gradient: torch.Tensor) -> None:
        self.training_state = TrainingState.BACKWARD_PRE
        if self._debug_print:
            collectives.master_print(f"{self._debug_msg}: backward")
        self._unit.begin_backward()
        self.training_state = TrainingState.BACKWARD_POST

    def _finalize(self) -> None:
        self.training_state = TrainingState.IDLE
        if self._is_root and self.sync_on_finalization:
            torch_xla.sync()

    def assert_state(self, state: TrainingState | list[TrainingState]) -> None:
        """Raise `ValueError` unless this unit is in one of the states."""
        allowed = state if isinstance(state, list) else [state]
        if self.training_state not in allowed:
            raise ValueError(f"assert_state(): this unit is in {self.training_state}; expected one of {allowed}")

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the shards of all parameters, each with the parameter's name in the module without wrappers.

        The name of a flat parameter consists of the names of its parameters, joined by commas.
        """
        return [
            (",".join(clean_name(_joined(prefix, piece.names[0])) for piece in handle.pieces), handle.shard)
            for prefix, unit in self._named_units()
            for handle in unit._unit.handles
        ]

    def get_shard_metadata(self) -> dict[str, object]:
        """Return the data that `consolidate_sharded_model_checkpoints` needs with `state_dict()`: plain Python data.

        Each process saves its own data:

            checkpoint = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
            xm.save(checkpoint, f"model_rank-{xr.global_ordinal()}-of-{xr.world_size()}.pth", master_only=False)
        """
        keys = {id(parameter): key for key, parameter in self.named_parameters(remove_duplicate=False)}
        shards = {
            keys[id(handle.shard)]: {
                "shape": list(handle.layout.size),
                "parameters": [
                    {
                        "names": [clean_name(_joined(prefix, name)) for name in piece.names],
                        "shape": list(piece.size),
                        "offset": piece.offset,
                    }
                    for piece in handle.pieces
                ],
            }
            for prefix, unit in self._named_units()
            for handle in unit._unit.handles
        }
        return {"world_size": self.world_size, "rank": self.rank, "shards": shards}

    def _named_units(self) -> Iterator[tuple[str, "XlaFullyShardedDataParallel"]]:
        for name, each in self.named_modules():
            if isinstance(each, XlaFullyShardedDataParallel):
                yield name, each

    def _units(self) -> Iterator["XlaFullyShardedDataParallel"]:
        return (unit for _, unit in self._named_units())

    def __getattr__(self, name: str) -> torch.Tensor | torch.nn.Module:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key: object) -> torch.nn.Module:
        return self._fsdp_wrapped_module[key]


def apply_to_tensors(fn: Callable[[torch.Tensor], torch.Tensor], container: object) -> Any:
    """Replace each tensor in `container`, at any depth, by `fn(tensor)`.

    >>> apply_to_tensors(lambda tensor: tensor * 2, {"a": [torch.tensor(1)], "b": 3})
    {'a': [tensor(2)], 'b': 3}
    """
    return replaced(container, lambda tensor: True, lambda tensors: [fn(tensor) for tensor in tensors])


def collect_tensors(container: object) -> list[torch.Tensor]:
    """Return the tensors in `container`, at any depth, each once.

    >>> collect_tensors({"a": [torch.tensor(1)], "b": 3})
    [tensor(1)]
    """
    return collected(container, lambda tensor: True)


def clean_name(name: str) -> str:
    """Remove the wrappers from a name in a wrapped module.

    >>> clean_name("_fsdp_wrapped_module._fpw_module.0.weight")
    '0.weight'
    """
    return name.replace("_fsdp_wrapped_module.", "").replace("_fpw_module.", "")


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _place(groups: Groups, rank: int | None, size: int | None) -> tuple[int, int]:
    if groups is not None and (rank is None or size is None):
        raise ValueError(
            "XlaFullyShardedDataParallel: sharding_groups needs sharding_rank, the place of this process in its group, "
            "and sharding_world_size, the size of the group"
        )
    own_rank = collectives.get_ordinal() if rank is None else rank
    own_size = collectives.xrt_world_size() if size is None else size
    among = distributed.groups_of(groups)
    if (distributed.place_in_group(among), distributed.group_size(among)) != (own_rank, own_size):
        raise ValueError(
            f"XlaFullyShardedDataParallel: sharding_rank {own_rank} of sharding_world_size {own_size} is not the place "
            f"of this process: that is {distributed.place_in_group(among)} of {distributed.group_size(among)} in "
            f"groups {groups}"
        )
    return own_rank, own_size


def _divisors(count: int) -> tuple[float, float]:
    """Return two factors of `count`, the first near its square root.

    Dividing by one before and by the other after a sum keeps both gradients and sums in the range of a small dtype.
    """
    before = 1
    while count % (2 * before) == 0 and count > 2 * before * before:
        before *= 2
    return float(before), count / before


def _wrap_inside(
    module: nn.Module,
    policy: Callable[..., bool],
    wrapper: Callable[..., nn.Module] | None,
    given: dict[str, Any],
) -> None:
    if any(isinstance(each, XlaFullyShardedDataParallel) for each in module.modules()):
        raise ValueError(
            "XlaFullyShardedDataParallel: auto_wrap_policy wraps a module in which nothing is wrapped yet; this one "
            "has units. Leave the policy out, or let it wrap all of them"
        )
    passed = {name: value for name, value in given.items() if name not in ("auto_wrap_policy", "auto_wrapper_callable")}
    make = partial(wrapper or XlaFullyShardedDataParallel, **passed)
    recursive_wrap(module, policy, make, (), (), only_wrap_children=True)
