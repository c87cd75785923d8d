"""An optimizer that divides its state: each process steps a shard of the parameters, and keeps only its state."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from .._engine import distributed
from .._engine.distributed import ShardLayout
from ..core import collectives

Groups = Sequence[Sequence[int]] | None


class ZeroRedundancyOptimizer(Optimizer):
    """Divide the state of an optimizer among processes that hold the same model (ZeRO-1).

    A step averages the gradients over the processes, leaves each process its shard of the average, lets an optimizer of
    `optimizer_class` step this shard, and gathers the new parameters. All of it is in the step's program. Shards are
    rows of a parameter, padded to an equal number.

    Args:
        params: parameters or groups of them, on an `xla` device, equal on all processes.
        optimizer_class: the optimizer, called with the shards and `**defaults`, such as `lr`.
        optimizer_dtype: the dtype of the shards and of the state; by default float32.
        grad_clipping: scale the gradients so that their norm over all processes is at most `max_norm`, by default 1.
        pin_layout: accepted and not used: all arrays of a program have the same memory layout.
        sharding_groups: the groups of processes that divide the state, as `groups` of `xm.all_reduce`.
        grad_norm_groups: further groups of processes over which the squares of the norm are summed, for example the
            processes with the other parts of a layer.
        lazy_init: divide the parameters at the first step, or when `init_zero()` is called.
        bucket_cap_mb_all_gather, bucket_cap_mb_reduce_scatter: the largest size of a message, in MiB.
        use_grad_acc_hook: accumulate gradients of several backward passes in `optimizer_dtype`, outside of `.grad`, and
            communicate them in this dtype.
        save_master_weights: also save the shards themselves in `state_dict()`.
        higher_cc_precision: communicate in `optimizer_dtype` instead of the dtype of the parameters.

    >>> import torch, torch_xla
    >>> model = torch.nn.Linear(2, 2).to("xla")
    >>> optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    >>> model(torch.ones(1, 2, device="xla")).sum().backward()
    >>> optimizer.step()
    >>> round(optimizer.grad_norm.item(), 3)
    2.449
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, object]],
        optimizer_class: Callable[..., Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Groups = None,
        grad_norm_groups: Groups = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: object,
    ) -> None:
        super().__init__(params, defaults)
        self.optimizer_class, self.optimizer_dtype = optimizer_class, optimizer_dtype or torch.float32
        self.grad_clipping, self.max_norm = grad_clipping, 1.0 if max_norm is None else max_norm
        self.pin_layout, self.grad_norm_groups = pin_layout, grad_norm_groups
        self.bucket_cap_mb_all_gather = bucket_cap_mb_all_gather
        self.bucket_cap_mb_reduce_scatter = bucket_cap_mb_reduce_scatter
        self.save_master_weights, self.higher_cc_precision = save_master_weights, higher_cc_precision
        self.use_grad_acc_hook = use_grad_acc_hook
        self.base_optimizer: Optimizer | None = None
        self._groups = sharding_groups
        self._grad_norm: torch.Tensor | None = None
        self._sums: dict[torch.Tensor, torch.Tensor] = {}
        self._hooks: list[Any] = []
        if use_grad_acc_hook:
            for parameter in self._parameters():
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._sum_up))
        if not lazy_init:
            self.init_zero()

    def init_zero(self) -> None:
        """Divide the parameters and create the optimizer of the shards."""
        among = distributed.groups_of(self._groups)
        self._among, self._count, self._place = among, distributed.group_size(among), distributed.place_in_group(among)
        self._parts: dict[torch.Tensor, torch.nn.Parameter] = {}
        self._layouts: dict[torch.Tensor, ShardLayout] = {}
        for parameter in self._parameters():
            layout = self._layouts[parameter] = ShardLayout(parameter.shape, self._count, on_dim_0=True)
            part = layout.shard(parameter.data, self._place).to(self.optimizer_dtype)
            self._parts[parameter] = torch.nn.Parameter(part, requires_grad=parameter.requires_grad)
        groups = [{**group, "params": [self._parts[p] for p in group["params"]]} for group in self.param_groups]
        self.base_optimizer = self.optimizer_class(groups, **self.defaults)
        for group, base in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            for name, value in base.items():
                group.setdefault(name, value)

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """Return the norm of the gradients of the last step, before scaling, over all processes."""
        return self._grad_norm

    @property
    def sharding_groups(self) -> Groups:
        """Return the groups of processes that divide the state."""
        return self._groups

    @sharding_groups.setter
    def sharding_groups(self, new_sharding_groups: Groups) -> None:
        """Set other groups, before the parameters are divided."""
        if self.base_optimizer is not None:
            raise RuntimeError(
                "sharding_groups cannot change after init_zero(); pass lazy_init=True and set them before"
            )
        self._groups = new_sharding_groups

    def remove_hooks(self) -> None:
        """Stop accumulating gradients outside of `.grad`."""
        while self._hooks:
            self._hooks.pop().remove()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step all parameters. Returns the result of `closure`, which is called first, with gradients enabled."""
        _refuse_scheme(kwargs.pop("sharding_scheme", None))
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        base = self._base()
        self._divide_gradients()
        if self.grad_clipping:
            self._clip()
        for group, of_parts in zip(self.param_groups, base.param_groups, strict=True):
            of_parts.update({name: value for name, value in group.items() if name != "params"})
        base.step(**kwargs)
        for part in self._parts.values():
            part.grad = None
        self.allgather_weights_and_update_full_parameter()
        # Some optimizers keep numbers in their groups, such as a step count or a rate that they adapt.
        for group, of_parts in zip(self.param_groups, base.param_groups, strict=True):
            group.update({name: value for name, value in of_parts.items() if name != "params"})
        return loss

    @torch.no_grad()
    def allgather_weights_and_update_full_parameter(self, sharding_scheme: object = None) -> None:
        """Gather the shards of all processes and write the parameters. `sharding_scheme` must be `None`."""
        _refuse_scheme(sharding_scheme)
        self._base()
        parameters = list(self._parts)
        own = [self._parts[p].data if self.higher_cc_precision else self._parts[p].data.to(p.dtype) for p in parameters]
        rows = distributed.gather_shards(own, self._count, self._among, self.bucket_cap_mb_all_gather)
        for parameter, each in zip(parameters, rows, strict=True):
            parameter.data.copy_(self._layouts[parameter].whole(each))

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear the gradients of all parameters; gradients accumulated outside of `.grad` become zeros."""
        self._sums = {parameter: torch.zeros_like(total) for parameter, total in self._sums.items()}
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, object]:
        """Return this process's state, for its `load_state_dict`: groups, state of the shard, shapes."""
        base = self._base()
        state = super().state_dict()
        state["base_state"] = base.state_dict()["state"]
        state["shape_info"] = self.get_shape_info()
        if self.save_master_weights:
            state["sharded_master_weights"] = dict(enumerate(part.data for part in self._parts.values()))
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict()`. Raises `ValueError` if it belongs to parameters of other shapes.

        If it contains the shards themselves (`save_master_weights`), the parameters are set too.
        """
        base = self._base()
        given = dict(state_dict)
        states, shapes = given.pop("base_state"), given.pop("shape_info", None)
        master = given.pop("sharded_master_weights", {})
        if shapes is not None and {int(k): tuple(v) for k, v in shapes.items()} != self.get_shape_info():
            raise ValueError(
                f"ZeroRedundancyOptimizer.load_state_dict(): the states are of parameters of shapes {shapes}; this "
                f"optimizer has {self.get_shape_info()}"
            )
        super().load_state_dict(given)
        base.load_state_dict({"state": states, "param_groups": base.state_dict()["param_groups"]})
        for (parameter, part), index in zip(self._parts.items(), range(len(self._parts)), strict=True):
            if index in master:
                part.data.copy_(master[index])
            else:
                # The parameters were loaded before; the parts follow them.
                part.data.copy_(self._layouts[parameter].shard(parameter.data, self._place))
        if master:
            self.allgather_weights_and_update_full_parameter()

    def get_shape_info(self) -> dict[int, tuple[int, ...]]:
        """Return the shapes of the whole parameters, by their index in `state_dict()`."""
        return {index: tuple(parameter.shape) for index, parameter in enumerate(self._parameters())}

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _base(self) -> Optimizer:
        if self.base_optimizer is None:
            self.init_zero()
        assert self.base_optimizer is not None
        return self.base_optimizer

    def _sum_up(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None  # called when its gradient is complete
        gradient = parameter.grad.to(self.optimizer_dtype)
        before = self._sums.get(parameter)
        self._sums[parameter] = gradient if before is None else before + gradient
        parameter.grad = None

    def _divide_gradients(self) -> None:
        rows, parts = [], []
        for parameter, part in self._parts.items():
            gradient = self._sums.get(parameter, parameter.grad)
            if gradient is not None:
                exchanged = gradient.to(self.optimizer_dtype) if self.higher_cc_precision else gradient
                rows.append(self._layouts[parameter].rows(exchanged))
                parts.append(part)
        own = distributed.reduce_scatter_shards(rows, self._count, self._among, self.bucket_cap_mb_reduce_scatter)
        for part, row in zip(parts, own, strict=True):
            part.grad = row.reshape(part.shape).to(self.optimizer_dtype) / self._count

    def _clip(self) -> None:
        gradients = [part.grad for part in self._parts.values() if part.grad is not None]
        dtype = torch.promote_types(self.optimizer_dtype, torch.float32)
        total: Any = torch.zeros((), dtype=dtype, device=next(iter(self._parts)).device)
        if gradients:
            total = torch.stack([gradient.to(dtype).square().sum() for gradient in gradients]).sum()
        for groups in [self._groups] if self.grad_norm_groups is None else [self._groups, self.grad_norm_groups]:
            total = collectives.all_reduce(collectives.REDUCE_SUM, total, groups=groups)
        self._grad_norm = total.sqrt()
        factor = (self.max_norm / (self._grad_norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))


def _refuse_scheme(scheme: object) -> None:
    if scheme is not None:
        raise ValueError(
            f"ZeroRedundancyOptimizer: sharding_scheme is {scheme!r}; gradients are summed in one exchange over "
            "sharding_groups and divided by the size of a group. Leave it out, and pass the groups to the optimizer"
        )
