"""Loss scaling for float16, whose small gradients would become zero."""

from typing import Any

import torch

from .._engine.distributed import found_by_any


class GradScaler(torch.amp.GradScaler):
    """Scale the loss up and the gradients down again, and skip steps whose gradients overflowed.

    Arguments and use are those of `torch.amp.GradScaler`. The optimizers of `torch_xla.amp.syncfree`, and those of
    `torch.optim` made with `fused=True`, decide on the device whether to skip, so the host does not wait. With any
    other optimizer, `step` waits for the answer, and a counter counts the wait. With `use_zero_grad` no optimizer
    waits: gradients that overflowed become zeros, and the optimizer takes its step with them (momentum and weight
    decay continue). Processes that divide a model (`XlaFullyShardedDataParallel`) skip together.

    >>> import torch, torch_xla
    >>> from torch_xla.amp import GradScaler, autocast, syncfree
    >>> weight = torch.ones(2, 2, device="xla", requires_grad=True)
    >>> optimizer, scaler = syncfree.SGD([weight], lr=0.1), GradScaler(init_scale=4.0)
    >>> with autocast(torch_xla.device(), dtype=torch.float16):
    ...     loss = (weight @ weight).sum()
    >>> scaler.scale(loss).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> round(weight[0, 0].item(), 4)
    0.6
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        self._use_zero_grad = use_zero_grad
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, *others: Any) -> dict[torch.device, torch.Tensor]:
        found = super()._unscale_grads_(optimizer, *others)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return {device: found_by_any(each, parameters) for device, each in found.items()}

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: Any, *args: Any, **kwargs: Any
    ) -> float | None:
        if not self._use_zero_grad:
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        overflowed = torch.stack([each.reshape(()) for each in optimizer_state["found_inf_per_device"].values()]).sum()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.masked_fill_(overflowed.to(parameter.grad.device) > 0, 0.0)
        return optimizer.step(*args, **kwargs)
