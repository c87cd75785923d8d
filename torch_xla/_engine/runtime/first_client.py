"""The environment in which JAX starts its first client: what XLA, and libtpu beside it, read once in a process."""

from collections.abc import Iterator
from contextlib import contextmanager

from .cpu_instructions import common_to_processors
from .gpus import starting_without_cuda
from .tpu_chips import searching_for_no_tpu


@contextmanager
def client_environment() -> Iterator[None]:
    """Have a client that starts in a `with` block look for no missing TPU or GPU; compile for common processors."""
    with searching_for_no_tpu(), starting_without_cuda(), common_to_processors():
        yield
