"""How Accelerate starts processes from a notebook: two of them, for the examples that train in that way."""

from collections.abc import Callable
from typing import Any

from accelerate import notebook_launcher

from torch_xla.utils.utils import get_free_tcp_ports

PROCESSES = 2


def start(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    notebook_launcher(function, args, num_processes=PROCESSES, use_port=str(get_free_tcp_ports()[0]))
