"""Exchange `xla` tensors in groups that know the host's memory alone, such as Gloo's: over copies there.

PyTorch does so for CUDA tensors in Gloo's groups. Groups whose processes come and go need it: each of these processes
has a runtime of its own, so no program on the devices can span them.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..compat.names import torch_distributed
from .point_to_point import write

# The operators of `torch.distributed` that take tensors.
_OPERATORS = (
    "allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_",
    "allgather_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier", "send",
    "recv_", "recv_any_source_",
)  # fmt: skip


def register() -> None:
    """Let the operators of `torch.distributed` take `xla` tensors in groups without a backend for them, once."""
    torch_distributed.implement({name: _staged(name) for name in _OPERATORS})
    torch_distributed.let_gloo_take("xla")


def _staged(name: str) -> Callable[..., object]:
    """Return an operator of `torch.distributed` that exchanges copies in the host's memory."""
    operator = torch_distributed.operator(name)
    names, returns_tensors = torch_distributed.signature(operator)
    written = [each.startswith("output") or (each == "tensors" and name != "send") for each in names]

    def call(*arguments: object) -> object:
        _check(name, next(torch_distributed.group_of(each) for each in arguments if type(each) is torch.ScriptObject))
        targets: list[torch.Tensor] = []
        copies: list[torch.Tensor] = []
        staged = []
        for argument, is_written in zip(arguments, written, strict=False):
            copied = _on_host(argument)
            staged.append(copied)
            if is_written:
                targets += _flat(argument)
                copies += _flat(copied)
        answer = operator(*staged)
        work = torch_distributed.work_of(answer[1] if returns_tensors else answer)
        given = torch_distributed.HostWork(work, written_after(work, targets, copies)).boxed()
        return (arguments[0], given) if returns_tensors else given

    return call


def _check(name: str, group: Any) -> None:
    """Raise `RuntimeError` unless a group takes tensors in the host's memory."""
    known = sorted({device.type for device in group._device_types})
    if "cpu" not in known:
        raise RuntimeError(
            f"torch.distributed: {name.strip('_')} got tensors on xla, and its group has a backend for "
            f"{', '.join(known) or 'no device'} alone. Use a group of the backend 'xla', or one for tensors in the "
            "host's memory, such as 'gloo'"
        )


def written_after(
    work: Any, targets: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]
) -> torch.futures.Future[list[torch.Tensor]]:
    """Return a future that ends when `work` has ended and `targets` have got the values of their copies."""
    ended: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def settle(wait: Callable[[], object]) -> None:
        try:
            wait()
            write(targets, copies)
        except Exception as error:  # in a thread of Gloo's: the future carries it to the one that waits
            ended.set_exception(error)  # type: ignore[arg-type]
        else:
            ended.set_result(list(targets))

    future = torch_distributed.future_of(work)
    if future is not None:
        future.add_done_callback(lambda future: settle(future.wait))
    else:
        threading.Thread(target=settle, args=(work.wait,), name="torch_xla-exchange", daemon=True).start()
    return ended


def _on_host(argument: object) -> object:
    """Return an argument of an operator with copies, in the host's memory, of its tensors on `xla`."""
    if isinstance(argument, torch.Tensor):
        return argument.detach().cpu().contiguous() if argument.device.type == "xla" else argument
    if isinstance(argument, (list, tuple)):
        return [_on_host(each) for each in argument]
    return argument


def _flat(argument: object) -> Sequence[torch.Tensor]:
    """Return the tensors of an argument, of lists of lists too."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    assert isinstance(argument, (list, tuple))
    return [tensor for each in argument for tensor in _flat(each)]
