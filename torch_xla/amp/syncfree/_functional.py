"""The optimizers' steps as functions of lists of tensors. The functions write to their arguments."""

import torch
from torch import Tensor
from torch.optim import adam, adamw, sgd


def adam_step(
    found_inf: Tensor,
    state_steps: list[Tensor],
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    *,
    amsgrad: bool,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """Take a step of Adam, or with `use_adamw` of AdamW; change nothing if `found_inf` (one element) is not zero.

    >>> import torch, torch_xla
    >>> from torch_xla.amp.syncfree._functional import adam_step
    >>> weight, grad, mean, square, step = (torch.ones(2, device="xla") for _ in range(5))
    >>> settings = dict(amsgrad=False, beta1=0.9, beta2=0.99, lr=0.1, weight_decay=0.0, eps=1e-8, maximize=False)
    >>> skip, zero = torch.ones((), device="xla"), torch.zeros((), device="xla")
    >>> adam_step(skip, [zero], [weight], [grad], [mean], [square], [], use_adamw=False, **settings)
    >>> weight.tolist()
    [1.0, 1.0]
    """
    (adamw.adamw if use_adamw else adam.adam)(
        params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, fused=True,
        found_inf=found_inf.to(torch.float32).reshape(()), amsgrad=amsgrad, beta1=beta1, beta2=beta2, lr=lr,
        weight_decay=weight_decay, eps=eps, maximize=maximize,
    )  # fmt: skip


def sgd_step(
    found_inf: Tensor,
    state_steps: list[Tensor],
    params: list[Tensor],
    d_p_list: list[Tensor],
    momentum_buffer_list: list[Tensor | None],
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Take a step of SGD with the gradients `d_p_list`; change nothing if `found_inf` (one element) is not zero.

    Adds one to each element of `state_steps` if the step is taken.

    >>> import torch, torch_xla
    >>> from torch_xla.amp.syncfree._functional import sgd_step
    >>> weight, grad, step = torch.ones(2, device="xla"), torch.ones(2, device="xla"), torch.zeros((), device="xla")
    >>> settings = dict(weight_decay=0.0, momentum=0.0, dampening=0.0, nesterov=False, maximize=False)
    >>> sgd_step(torch.zeros((), device="xla"), [step], [weight], [grad], [None], lr=0.5, **settings)
    >>> weight.tolist(), step.item()
    ([0.5, 0.5], 1.0)
    """
    found = found_inf.to(torch.float32).reshape(())
    sgd.sgd(
        params, d_p_list, momentum_buffer_list, fused=True, found_inf=found, weight_decay=weight_decay,
        momentum=momentum, lr=lr, dampening=dampening, nesterov=nesterov, maximize=maximize,
    )  # fmt: skip
    for step in state_steps:
        step.add_(1 - found.to(step.dtype))
