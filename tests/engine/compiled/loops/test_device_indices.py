"""Indices that the device knows, in bodies of loops: as PyTorch reads them on the host, round by round."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import scan

Body = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def stored(index: Callable[[torch.Tensor], Any], value: Callable[[torch.Tensor, torch.Tensor], Any]) -> Body:
    def body(i: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out[index(i)] = value(i, table)
        return out

    return body


def added(i: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out[i] += table[-1 - i]
    out[i, 2] *= 3
    return out


def nested(i: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    row = table[i]
    return torch.cond(row.sum() > 0, lambda: out + table[i, i % 3] * row, lambda: out - row[i % 3])


BODIES: dict[str, Body] = {
    "element": lambda i, table, out: out + table[i, i % 3],
    "row": lambda i, table, out: out + table[i],
    "column": lambda i, table, out: out + table[:, i % 3].sum(),
    "from the end": lambda i, table, out: out + table[-1 - i] * table[..., -1 - i % 3].mean(),
    "with others": lambda i, table, out: out + table[None, i, 1:].sum() + table[[0, 2], i % 3].sum(),
    "after others": lambda i, table, out: out + table[:, None, i % 3].amax(0) + table[i, torch.tensor([2, 0, 1])],
    "of other dtypes": lambda i, table, out: out + table[i.int()] * table[i.to(torch.int16)],
    "select": lambda i, table, out: out + table.select(0, i) + torch.select(table, -1, i % 3).sum(),
    "narrow": lambda i, table, out: out + table.narrow(0, i // 2, 2).sum(0) + torch.narrow(table, 1, i % 2, 2).sum(),
    "stored row": stored(lambda i: i, lambda i, table: table[i] * 2),
    "stored number": stored(lambda i: (i, i % 3), lambda i, table: 5),
    "stored element": stored(lambda i: (..., i % 3), lambda i, table: table[:, i % 3]),
    "stored part": stored(lambda i: (i, slice(1, None)), lambda i, table: table[i, :2].unsqueeze(0)),
    "stored with others": stored(lambda i: ([3, 1], i % 3), lambda i, table: table[i, :2]),
    "stored with a mask": stored(lambda i: (torch.tensor([True, False, True, True]), i % 3), lambda i, table: 5),
    "stored other dtype": stored(lambda i: i, lambda i, table: torch.tensor(True)),
    "added": added,
    "nested": nested,
}


def results(body: Body, device: str) -> list[torch.Tensor]:
    table = torch.arange(12.0).reshape(4, 3).sin().to(device).requires_grad_()
    start = torch.zeros(4, 3, device=device)

    def once(i: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return body(i, table, out.clone())

    if device == "cpu":
        out = start
        for i in range(4):
            out = once(torch.tensor(i), out)
    else:
        out = fori_loop(0, 4, once, start)
    out.square().sum().backward()
    assert table.grad is not None or not out.requires_grad
    return [out.detach().cpu(), *([table.grad.cpu()] if table.grad is not None else [])]


@pytest.mark.parametrize("name", BODIES)
def test_what_is_selected_by_a_tensor_in_a_body(name: str) -> None:
    body = BODIES[name]
    if name in ("stored number", "stored other dtype", "stored with a mask"):  # no gradient reaches the table
        inner = body
        body = lambda i, table, out: inner(i, table, out + 0 * table[i])  # noqa: E731
    on_cpu = body
    if name == "nested":
        on_cpu = lambda i, table, out: (  # noqa: E731
            out + table[i, i % 3] * table[i] if table[i].sum() > 0 else out - table[i, i % 3]
        )
    torch.testing.assert_close(results(body, "xla"), results(on_cpu, "cpu"), rtol=1e-5, atol=1e-5)


def test_a_condition_may_select_and_what_is_carried_may_be_written_to() -> None:
    values = torch.tensor([3.0, 1.0, -2.0, 5.0]).to("xla")

    def body(i: torch.Tensor, seen: torch.Tensor) -> Any:
        seen[i] = values[i] + seen[i - 1]
        return i + 1, seen

    i, seen = while_loop(lambda i, seen: values[i] > 0, body, (0, torch.zeros(4, device="xla")))
    assert i.item() == 2 and seen.tolist() == [3, 4, 0, 0]


def written(i: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out[i].add_(1)
    return out


def written_inside(i: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out[i][0] = 1
    return out


def seen_late(i: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    row = out[i]
    out.add_(1)
    return out + row


def of_unknown_size(i: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out + out[i : i + 2].sum()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (written, r"writes to `x\[i\]`, where `i` is a tensor: there it is a copy .* Write `x\[i\] = value`"),
        (written_inside, r"writes to `x\[i\]`"),
        (seen_late, r"uses `x\[i\]`, where `i` is a tensor, after a write to `x`: .* Select again after the write"),
        (of_unknown_size, r"a slice .* begins or ends where a tensor says.*`x.narrow\(dim, i, size\)`"),
    ],
)
def test_where_a_copy_would_not_do_it_is_told(body: Any, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        fori_loop(0, 4, lambda i, out: body(i, out.clone()), torch.zeros(4, 3, device="xla"))


def test_mistakes_are_pytorchs() -> None:
    x = torch.zeros(4, 3, device="xla")
    for wrong in (
        lambda c, i: (c + c[i, i, i].sum(), i),
        lambda c, i: (c + c.select(2, i), i),
    ):
        with pytest.raises(IndexError, match="too many indices|Dimension out of range"):
            scan(wrong, x, torch.arange(3, device="xla"))
