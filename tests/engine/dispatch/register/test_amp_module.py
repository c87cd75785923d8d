"""`torch.xla.amp`, as programs for CUDA use `torch.cuda.amp`."""

from typing import Any

import torch


def test_a_step_in_mixed_precision() -> None:
    amp: Any = torch.xla.amp  # type: ignore[attr-defined]
    model = torch.nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = amp.GradScaler(init_scale=4.0)
    before = model.weight.tolist()
    with amp.autocast(dtype=torch.bfloat16):
        y = model(torch.ones(2, 4, device="xla"))
        assert y.dtype is torch.bfloat16
    scaler.scale(y.float().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert model.weight.tolist() != before and scaler.get_scale() == 4.0


def test_functions_of_autograd_choose_their_precision() -> None:
    amp: Any = torch.xla.amp  # type: ignore[attr-defined]

    class Double(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.dtype)
            return x * 2

        @staticmethod
        @amp.custom_bwd
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    seen: list[torch.dtype] = []
    x = torch.ones(3, device="xla", dtype=torch.bfloat16, requires_grad=True)
    with amp.autocast(dtype=torch.bfloat16):
        Double.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert seen == [torch.float32] and x.grad is not None and x.grad.tolist() == [2, 2, 2]
