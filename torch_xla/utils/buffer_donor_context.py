"""Donate the memory of tensors that are still referenced."""

from collections.abc import Iterator
from contextlib import contextmanager

from .._engine.step import donation


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[None]:
    """Make `_XLAC._xla_get_enable_alias_with_buffer_donor_config()` return `should_alias` within a `with` block.

    `_XLAC._set_buffer_donation(tensor, True)` marks tensors. The marks have an effect inside and outside of the block.

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
    before = donation.asked_for
    donation.asked_for = should_alias
    try:
        yield
    finally:
        donation.asked_for = before
