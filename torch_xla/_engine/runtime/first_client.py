"""The environment in which JAX starts its first client: what XLA, and libtpu beside it, read once in a process."""

from collections.abc import Iterator
from contextlib import contextmanager

from .cpu_instructions import common_to_processors
from .tpu_chips import searching_for_no_tpu


@contextmanager
def client_environment() -> Iterator[None]:
    """Have a client that starts within a `with` block search for no missing TPU and compile for common processors."""
    with searching_for_no_tpu(), common_to_processors():
        yield
