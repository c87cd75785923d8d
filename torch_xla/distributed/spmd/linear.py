"""Linear layers that do not flatten their input, so that each dimension can be divided along its own axis."""

from typing import Any

import torch

from ..._engine import tensor


class XLAPatchedLinear(torch.autograd.Function):
    """`torch.nn.functional.linear` whose gradients are products over all dimensions, without flattened inputs.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> x, w = torch.ones(2, 3, 4, device="xla"), torch.ones(5, 4, device="xla")
    >>> xs.XLAPatchedLinear.apply(x, w, None).shape
    torch.Size([2, 3, 5])
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Map input (..., n) and weight (m, n) to (..., m); `bias` has m elements."""
        ctx.save_for_backward(input, weight)
        ctx.has_bias = bias is not None
        product = torch.einsum("...n,mn->...m", input, weight)
        return product if bias is None else product + bias

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of input, weight and bias, where they are needed."""
        input, weight = ctx.saved_tensors
        of_input, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.einsum("...m,mn->...n", grad_output, weight) if of_input else None,
            torch.einsum("...m,...n->mn", grad_output, input) if of_weight else None,
            torch.einsum("...m->m", grad_output) if ctx.has_bias and of_bias else None,
        )


def xla_patched_nn_linear_forward(m: torch.nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """Run the `forward` of an `nn.Linear` by `XLAPatchedLinear`.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> xs.xla_patched_nn_linear_forward(torch.nn.Linear(4, 5).to("xla"), torch.ones(2, 3, 4, device="xla")).shape
    torch.Size([2, 3, 5])
    """
    made: torch.Tensor = XLAPatchedLinear.apply(input, m.weight, m.bias)
    return made


class EinsumLinear(torch.nn.Linear):
    """An `nn.Linear` that computes by `XLAPatchedLinear`.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> xs.EinsumLinear(4, 5)(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 5])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map input (..., n) to (..., m)."""
        return xla_patched_nn_linear_forward(self, input)


def apply_xla_patch_to_nn_linear(module: torch.nn.Module) -> torch.nn.Module:
    """Replace each `nn.Linear` in `module` by an `EinsumLinear` with the same parameters, and return `module`.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> xs.apply_xla_patch_to_nn_linear(torch.nn.Sequential(torch.nn.Linear(2, 3)))[0]
    EinsumLinear(in_features=2, out_features=3, bias=True)
    """
    for each in module.modules():
        if type(each) is torch.nn.Linear:
            each.__class__ = EinsumLinear
    return module


def apply_backward_optimization_barrier(m: torch.nn.Module) -> None:
    """Keep XLA from fusing the backward pass of `m` with the backward passes of earlier modules.

    Large models need this for FSDP, so that gathered weights are freed layer by layer.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> xs.apply_backward_optimization_barrier(torch.nn.Linear(2, 3).to("xla"))
    """

    def hook(
        module: torch.nn.Module, grad_input: tuple[torch.Tensor | None, ...], grad_output: object
    ) -> tuple[torch.Tensor | None, ...]:
        passed = [None if grad is None else grad.clone() for grad in grad_input]
        tensor.put_barrier([grad for grad in passed if grad is not None])
        return tuple(passed)

    m.register_full_backward_hook(hook)
