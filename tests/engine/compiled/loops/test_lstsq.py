"""Least squares and other equations in bodies of loops: as PyTorch solves them, with its gradients."""

from typing import Any

import pytest
import torch

from torch_xla.experimental.scan import scan

SOLVERS: dict[str, Any] = {
    "least squares": lambda A, b: torch.linalg.lstsq(A, b).solution,
    "least squares, wide": lambda A, b: torch.linalg.lstsq(A[:2], b[:2]).solution,
    "least squares of a vector": lambda A, b: torch.linalg.lstsq(A, b[:, 0])[0],
    "least squares, all of it": lambda A, b: sum(
        each.sum() for driver in ("gelsy", "gels") for each in torch.linalg.lstsq(A, b, driver=driver)
    ),
    "least squares by singular values": lambda A, b: sum(
        each.sum() for each in torch.linalg.lstsq(A[:3], b[:3], driver="gelsd")
    ),
    "of a Cholesky factor": lambda A, b: torch.cholesky_solve(b[:3], torch.linalg.cholesky(A.T @ A)),
    "of several": lambda A, b: torch.cholesky_solve(
        torch.stack([b[:3], b[1:4]]), torch.linalg.cholesky(A.T @ A, upper=True), upper=True
    ),
}


def results(solve: Any, device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    A, xs = (each.to(device).requires_grad_() for each in (torch.randn(5, 3), torch.randn(2, 5, 2)))
    total = torch.zeros((), device=device)

    def body(total: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = solve(A, x)
        return total + found.square().sum(), total

    if device == "xla":
        total, _ = scan(body, total, xs)
    else:
        for x in xs:
            total, _ = body(total, x)
    return [each.detach().cpu() for each in (total, *torch.autograd.grad(total, [A, xs]))]


@pytest.mark.parametrize("name", SOLVERS)
def test_equations_in_a_body(name: str) -> None:
    torch.testing.assert_close(results(SOLVERS[name], "xla"), results(SOLVERS[name], "cpu"), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("driver", "error", "words"),
    [
        (
            "gelsd",
            NotImplementedError,
            "only where the rank is full, which the host would .* Leave `driver`",
        ),
        ("other", RuntimeError, "should be one of .gels, gelsy, gelsd, gelss., got 'other'"),
    ],
)
def test_what_a_body_cannot_solve_is_told(driver: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        results(lambda A, b: torch.linalg.lstsq(A, b, driver=driver)[0], "xla")
