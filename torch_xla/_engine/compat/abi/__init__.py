"""Structures of PyTorch's C++ that we fill or change in memory. Other rooms import what is exported here."""

from .class_calls import answer_calls_of as answer_calls_of
from .device_guard import answer_for_current_device as answer_for_current_device
from .device_guard import answer_for_device_count as answer_for_device_count
from .device_guard import confirm_layout as confirm_layout
from .device_guard import device_word as device_word
from .device_guard import let_exceptions_pass as let_exceptions_pass
from .device_guard import register_guard as register_guard
from .device_guard import stand_for_unnamed as stand_for_unnamed
from .generator_device import belong_to as belong_to
from .pinned_memory import answer_with_memory_of_the_host as answer_with_memory_of_the_host
from .view_kernels import take_meta_kernels as take_meta_kernels
