"""Messages between two processes of a group, in an order that cannot deadlock.

A message is an exchange of two processes, which both come to in the order of their calls. Those of a batch
(`batch_isend_irecv`) are recorded at its end, all of them in one order: so they may cross, or go around a ring.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..compat.names import torch_distributed
from ..processes import identity
from .collectives import broadcast as broadcast_values
from .collectives import pair as pair_groups
from .collectives import start as start_collectives

Tensors = Sequence[torch.Tensor]


class Message(NamedTuple):
    """A message from one process of the program to another: the tensors to send, or those to overwrite."""

    tensors: Tensors
    sender: int
    receiver: int
    tag: int

    def place(self) -> tuple[int, int, bool, int]:
        """Return the sort key of messages, by which both ends of each message reach it in the same order.

        Messages are sorted by pair, then by direction (the lower rank sends first), then by tag; equal keys keep their
        order. So a process only ever waits for a message that is earlier in this order.
        """
        low, high = sorted((self.sender, self.receiver))
        return low, high, self.sender == high, self.tag


class _Waiting(threading.local):
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.batches = 0


_waiting = _Waiting()


class Later(torch_distributed.Work):  # type: ignore[misc]
    """The work of a message in a batch: who asks after it before the end of the batch has all so far recorded."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self._message, self._among = message, _waiting.messages
        self._among.append(message)

    def wait(self, timeout: object = None) -> bool:
        """Record the message, and all waiting ones."""
        _record(self._among)
        return True

    is_completed = is_success = synchronize = wait

    def exception(self) -> None:
        """Return nothing: the step's program raises it."""

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that are sent, or were received."""
        self.wait()
        return list(self._message.tensors)

    def get_future(self) -> object:
        """Return a future that has its result."""
        return torch_distributed.done(self.result()).get_future()


def exchange(tensors: Tensors, sender: int, receiver: int, tag: int) -> Any:
    """Exchange a message between this process and another one, and return its `Work`."""
    if not _waiting.batches:
        _record([Message(tensors, sender, receiver, tag)])
        return torch_distributed.done(list(tensors))
    if sender == identity.process_index():
        tensors = [tensor.detach().clone() for tensor in tensors]  # as they are now
    return Later(Message(tensors, sender, receiver, tag))


@contextmanager
def batch() -> Iterator[None]:
    """Record the messages of a `with` block at its end, and start them as a whole."""
    _waiting.batches += 1
    try:
        yield
    finally:
        _waiting.batches -= 1
    _record(_waiting.messages)
    start_collectives()


def _record(among: list[Message]) -> None:
    if not among:
        return
    messages = sorted(among, key=Message.place)
    among.clear()
    for message in messages:
        _exchange(message)
    if any(message.sender == identity.process_index() for message in messages):
        start_collectives()


def _exchange(message: Message) -> None:
    low, high = sorted((message.sender, message.receiver))
    flat = to_device([tensor.reshape(-1) for tensor in message.tensors])  # the receiver may think of another shape
    sent = broadcast_values(flat, int(message.sender == high), pair_groups(low, high), message.tag)
    if message.receiver == identity.process_index():
        write(message.tensors, [row.view(to.shape) for row, to in zip(sent, message.tensors, strict=True)])


def to_device(tensors: Tensors) -> list[torch.Tensor]:
    """Return `tensors` on the device: the host carries those of some dtypes alone."""
    return [tensor if tensor.device.type == "xla" else tensor.to("xla") for tensor in tensors]


def write(targets: Tensors, results: Tensors) -> None:
    """Overwrite each of the `targets` with its result.

    As PyTorch's own groups do, without telling autograd of the write: tensors and views that it knows stay usable.
    """
    with torch.no_grad():
        for target, result in zip(targets, results, strict=True):
            target.data.copy_(result)
