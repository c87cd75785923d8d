"""Memory that a step may have although somebody still holds its tensor."""

from collections.abc import Iterator
from contextlib import contextmanager

from .._engine.step import user_donation


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[None]:
    """While it is open, `_XLAC._xla_get_enable_alias_with_buffer_donor_config()` tells `should_alias`.

    Tensors are marked by `_XLAC._set_buffer_donation(tensor, True)`, and the marks count with and without it.

    >>> import torch, torch_xla
    >>> from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config
    >>> x = torch.ones(4, device="xla")
    >>> torch_xla.sync()
    >>> with alias_with_buffer_donor_config():
    ...     _ = torch_xla._XLAC._set_buffer_donation(x, True)
    ...     y = x + 1
    ...     torch_xla.sync()
    >>> y
    tensor([2., 2., 2., 2.], device='xla:0')
    """
    before = user_donation.asked_for
    user_donation.asked_for = should_alias
    try:
        yield
    finally:
        user_donation.asked_for = before
