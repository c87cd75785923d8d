"""PyTorch's loops and branches inside of bodies, whose functions close over tensors."""

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

from torch_xla._engine.compiled.loops import while_loops


def test_branches_in_a_loop_use_what_is_around_them() -> None:
    step, factor = torch.tensor([1.0, 10.0]), torch.tensor(2.0)

    def run(device: str) -> torch.Tensor:
        own, scale = step.to(device), factor.to(device)

        def body(n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return n + 1, torch.cond(n % 2 == 0, lambda x: x + own, lambda x: x * scale, (x,))

        start = torch.tensor(0).to(device), torch.ones(2).to(device)
        if device == "cpu":
            n, x = start
            while n < 4:
                n, x = n + 1, x + own if n % 2 == 0 else x * scale
            return x
        found: torch.Tensor = while_loops.while_loop(lambda n, x: n < 4, body, start)[1].cpu()
        return found

    torch.testing.assert_close(run("xla"), run("cpu"))


def test_a_function_that_writes_to_what_it_closes_over_is_refused() -> None:
    kept = torch.zeros(2).to("xla")

    def body(n: torch.Tensor) -> tuple[torch.Tensor]:
        def inner(m: torch.Tensor) -> tuple[torch.Tensor]:
            kept.add_(1)
            return (m + 1,)

        return while_loop(lambda m: m < 2, inner, (n,))

    with pytest.raises(RuntimeError, match="closes over"):
        while_loops.while_loop(lambda n: n < 3, body, (torch.tensor(0).to("xla"),))
    assert kept.tolist() == [0, 0]
