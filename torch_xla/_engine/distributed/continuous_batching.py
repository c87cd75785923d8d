"""Transformers' `generate_batch` on `xla`: few sizes of batches, made on the host, and a cache of what is needed.

Transformers pads batches where it captures graphs, which it does on devices of a list of its own. It writes each batch
into slices of buffers on the device: on `xla` each length of a slice would be a program.
"""

import functools
from math import ceil
from types import ModuleType
from typing import Any

import torch

from ..compat.names.torch import pytree

# The least numbers of tokens of a batch, of tokens that it reads from the cache, and of pages in the cache. The next
# larger numbers are four times as large each: requests of any lengths need a few programs.
_LEAST_TOKENS, _LEAST_READ, _LEAST_BLOCKS = 64, 256, 16
# A device that computes in the host's memory leaves so much to programs, as Transformers does on the CPU.
_SHARE_OF_HOST = 0.6


def _padded(count: int, least: int, most: int | None = None) -> int:
    while least < count:
        least *= 4
    return least if most is None else min(least, most)


def _blocks(hints: Any, page_size: int) -> int | None:
    """Return the number of pages that the requests can fill; `None` if that is not known."""
    length = hints.max_prompt_length + hints.max_generated_length if hints is not None else 0
    return _padded(hints.num_requests * ceil(length / page_size), _LEAST_BLOCKS) if length else None


def note_device(module: ModuleType) -> None:
    """Note in a resolved configuration the device, and how many tokens the requests can need."""
    if (resolve := getattr(module, "resolve_continuous_batching_config", None)) is None:
        return

    @functools.wraps(resolve)
    def resolved(config: Any, cb_config: Any, workload_hints: Any, *more: Any, **named: Any) -> object:
        found = resolve(config, cb_config, workload_hints, *more, **named)
        device = named.get("device", more[1] if len(more) > 1 else None)
        if device is not None and device.type == "xla":
            found.xla_device, found.xla_blocks = device, _blocks(workload_hints, found.page_size)
            if cb_config.max_requests_per_batch is None:  # the hints may say another number in each call
                found.max_requests_per_batch = _padded(found.max_requests_per_batch, _LEAST_TOKENS)
        return found

    module.resolve_continuous_batching_config = resolved  # type: ignore[attr-defined]


def size_cache(module: ModuleType) -> None:
    """Size the cache by the free memory of the device, and no larger than the requests can fill."""
    if (handler := getattr(module, "PagedAttentionMemoryHandler", None)) is None:
        return
    available, infer = handler.get_available_memory, handler.infer_max_batch_tokens_and_num_sectors

    @functools.wraps(available)
    def get_available_memory(self: Any) -> int:
        device = getattr(self.cb_config, "xla_device", None)
        if device is None:
            return available(self)
        xla = torch.get_device_module(device)
        share = self.cb_config.max_memory_percent
        if xla.get_device_properties(device).platform == "cpu":
            share = min(share, _SHARE_OF_HOST)
        return int(xla.mem_get_info(device)[0] * share)

    @functools.wraps(infer)
    def infer_sizes(self: Any) -> object:
        tokens, sectors = infer(self)
        needed = getattr(self.cb_config, "xla_blocks", None)
        if needed and self.cb_config.num_blocks is None:
            sectors = min(sectors, max(1, ceil(needed * self.bytes_per_block / self.bytes_per_sector)))
        return tokens, sectors

    handler.get_available_memory = get_available_memory
    handler.infer_max_batch_tokens_and_num_sectors = infer_sizes


def prepare_on_host(module: ModuleType) -> None:
    """Make batches in the host's memory, and send the device the tensors that the model is called with."""
    if (buffers := getattr(module, "ContinuousBatchingIOs", None)) is None:
        return
    init, reset, arguments = buffers.__init__, buffers._reset_static_tensors, buffers.get_model_kwargs

    @functools.wraps(init)
    def begin(self: Any, *args: Any, **named: Any) -> None:
        if (device := named.get("device")) is not None and device.type == "xla":
            self.xla_device = device
            named["device"] = torch.device("cpu")
        init(self, *args, **named)

    @functools.wraps(reset)
    def reset_buffers(self: Any, full_reset: bool = False) -> None:
        mask = self.attention_mask
        if full_reset and hasattr(self, "xla_device"):
            self.attention_mask = None  # each batch fills its part; the rest of it takes no memory
        try:
            reset(self, full_reset)
        finally:
            self.attention_mask = mask

    @functools.wraps(arguments)
    def get_model_kwargs(self: Any, *args: Any, **named: object) -> object:
        found = arguments(self, *args, **named)
        device = getattr(self, "xla_device", None)
        return found if device is None else pytree.tree_map_only(torch.Tensor, lambda each: each.to(device), found)

    buffers.__init__, buffers._reset_static_tensors = begin, reset_buffers
    buffers.get_model_kwargs = get_model_kwargs


def pad_batches(module: ModuleType) -> None:
    """Pad batches to few sizes, and compile what they need when they need it."""
    if (runner := getattr(module, "ModelRunner", None)) is None:
        return
    init, pad, warm_up = runner.__init__, runner.maybe_pad_inputs, runner.warmup

    def is_on_xla(self: Any) -> bool:
        return hasattr(self.inputs_and_outputs, "xla_device")

    @functools.wraps(init)
    def begin(self: Any, *args: Any, **named: object) -> None:
        init(self, *args, **named)
        self.pad_inputs = self.pad_inputs or is_on_xla(self)

    @functools.wraps(pad)
    def maybe_pad_inputs(self: Any, num_q_tokens: int, max_kv_read: int, use_decode_fast_path: bool) -> tuple[int, int]:
        if not is_on_xla(self):
            return pad(self, num_q_tokens, max_kv_read, use_decode_fast_path)
        read = _padded(max_kv_read, _LEAST_READ, self.cache.max_tokens_read)
        return _padded(num_q_tokens, _LEAST_TOKENS, self.cache.max_batch_tokens), read

    @functools.wraps(warm_up)
    def warmup(self: Any, model: object) -> object:
        # Of the largest batch, which may never come.
        return None if is_on_xla(self) else warm_up(self, model)

    runner.__init__, runner.maybe_pad_inputs, runner.warmup = begin, maybe_pad_inputs, warmup
