"""Let a generator of the CPU say in C++ that it belongs to our device, so that draws of other devices refuse it.

PyTorch's C++ makes no generators for a backend in Python, so ours are of the CPU's class. Its kernels compare the
device that the object keeps in front of its dispatch keys, and would draw from a state that ours do not show.
"""

import ctypes

import torch

from ..names.torch import address_of, backend_name
from ..names.torch_dispatch_keys import CPU_KEYS
from .device_guard import device_word
from .supported_release import refuse

# The object has its device and keys behind its reference counts and a mutex, in front of 2.5 KB of random state.
_WORDS = 16
_OF_THE_CPU = 0xFF00  # the type 0 and the ordinal -1, as in a `device_word`


def belong_to(generator: torch.Generator, index: int) -> None:
    """Write the device of the C++ object of a new generator of the CPU: ordinal `index` of PrivateUse1.

    Raises `RuntimeError`, and leaves the object as it is, if PyTorch does not answer with that device.
    """
    start, word = address_of(generator), ctypes.sizeof(ctypes.c_uint64)
    words = (ctypes.c_uint64 * _WORDS).from_address(start)
    keys = CPU_KEYS.raw_repr()
    places = [place for place in range(1, _WORDS) if words[place] == keys]
    if len(places) != 1:
        refuse("generators", f"the dispatch keys of one of the CPU are at {len(places)} places")
    device = ctypes.c_uint16.from_address(start + (places[0] - 1) * word)
    before = device.value
    if before != _OF_THE_CPU:
        refuse("generators", f"in front of the dispatch keys of one of the CPU is {before:#06x}")
    device.value = device_word(index)
    answer = torch._C.Generator.device.__get__(generator)
    if (answer.type, answer.index) != (backend_name(), index):
        device.value = before
        refuse("generators", f"one that was given a device answers {answer}")
