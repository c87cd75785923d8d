"""Steps with loops under `torch_xla.compile(..., replay=True)`: replayed, with the results of recorded ones."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

import torch_xla
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers

STATE: dict[str, Any] = {}


def a_scan_that_trains(x: torch.Tensor) -> torch.Tensor:
    def body(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        carry = torch.nn.functional.dropout(STATE["layer"](carry) + STATE["rate"] * x, 0.3)
        return carry, carry

    last, outputs = scan(body, torch.zeros(3, device="xla"), x)
    loss = last.sum() + outputs.square().sum()
    STATE["optimizer"].zero_grad()
    loss.backward()
    STATE["optimizer"].step()
    return loss.detach()


def a_loop_of_rounds(x: torch.Tensor) -> torch.Tensor:
    return fori_loop(0, 4, lambda i, total: total + STATE["rate"] * x[i], torch.zeros(3, device="xla")).detach()


def a_loop_to_an_end(x: torch.Tensor) -> torch.Tensor:
    rate = STATE["rate"]
    return while_loop(lambda total: total.sum() < 9, lambda total: (total + rate * x[0] ** 2,), (x[1],))[0].detach()


def a_stack_of_layers(x: torch.Tensor) -> torch.Tensor:
    return STATE["rate"] * scan_layers(STATE["layers"], x).sum().detach()


def run(step: Callable[[torch.Tensor], torch.Tensor], replay: bool) -> tuple[list[torch.Tensor], list[str]]:
    torch.manual_seed(0)
    torch.xla.manual_seed_all(0)
    STATE["layers"] = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3)).to("xla")
    STATE["layer"], STATE["rate"] = STATE["layers"][0], 1.0
    STATE["optimizer"] = torch.optim.SGD(STATE["layer"].parameters(), 0.01)
    compiled = torch_xla.compile(step, replay=replay)
    losses, reasons = [], []
    for count in range(9):
        STATE["rate"] = 1.0 if count < 5 else 0.5
        losses.append(compiled(torch.randn(4, 3).to("xla")).cpu())
        reasons.append(compiled.why_recorded if replay else "")
    return losses, reasons


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # that the rate has changed
    for step in (a_scan_that_trains, a_loop_of_rounds, a_loop_to_an_end, a_stack_of_layers):
        losses, reasons = run(step, replay=True)
        assert [not reason for reason in reasons] == [False] * 3 + [True] * 2 + [False] * 3 + [True], (step, reasons)
        torch.testing.assert_close(losses, run(step, replay=False)[0])
