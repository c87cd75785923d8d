"""Batches of `generate_batch` on `xla`, by classes of the same names as Transformers'."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from torch_xla._engine.distributed import continuous_batching

XLA, CPU = torch.device("xla"), torch.device("cpu")


def module_of(**names: Any) -> Any:
    module = ModuleType("library")
    vars(module).update(names)
    return module


def test_a_module_without_the_names_stays_as_it_is() -> None:
    for change in ("note_device", "size_cache", "prepare_on_host", "pad_batches"):
        module = module_of()
        before = dict(vars(module))
        getattr(continuous_batching, change)(module)
        assert vars(module) == before


@pytest.mark.parametrize(
    ("count", "most", "expected"), [(0, None, 64), (64, None, 64), (65, None, 256), (257, 300, 300), (5000, 8192, 8192)]
)
def test_sizes_grow_by_a_factor_of_four(count: int, most: int | None, expected: int) -> None:
    assert continuous_batching._padded(count, 64, most) == expected


@pytest.fixture
def sized() -> Any:
    """A function from a device, the requests and an asked number of pages to the sizes of the cache."""

    def resolve(config: Any, cb_config: Any, workload_hints: Any, has_processors: bool, device: Any = None) -> Any:
        requests = cb_config.max_requests_per_batch or (workload_hints.num_requests if workload_hints else 1024)
        return SimpleNamespace(**{**vars(cb_config), "max_requests_per_batch": requests})

    class PagedAttentionMemoryHandler:
        bytes_per_block = bytes_per_sector = 1000

        def __init__(self, cb_config: Any) -> None:
            self.cb_config = cb_config

        def get_available_memory(self) -> int:
            return 7_000

        def infer_max_batch_tokens_and_num_sectors(self) -> tuple[int, int]:
            return 8192, self.cb_config.num_blocks or self.get_available_memory() // self.bytes_per_sector

    resolving = module_of(resolve_continuous_batching_config=resolve)
    caching = module_of(PagedAttentionMemoryHandler=PagedAttentionMemoryHandler)
    continuous_batching.note_device(resolving)
    continuous_batching.size_cache(caching)

    def sizes(device: torch.device, hints: Any, blocks: int | None = None, requests: int | None = None) -> Any:
        asked = SimpleNamespace(
            page_size=256, num_blocks=blocks, max_requests_per_batch=requests, max_memory_percent=0.9
        )
        found = resolving.resolve_continuous_batching_config(None, asked, hints, False, device=device)
        handler = caching.PagedAttentionMemoryHandler(found)
        return handler.infer_max_batch_tokens_and_num_sectors()[1], found.max_requests_per_batch

    return sizes


def hints(requests: int, prompt: int, generated: int = 12) -> Any:
    return SimpleNamespace(num_requests=requests, max_prompt_length=prompt, max_generated_length=generated)


def test_the_cache_holds_what_the_requests_need(sized: Any) -> None:
    assert sized(XLA, hints(25, 40)) == sized(XLA, hints(31, 39)) == (64, 64)
    assert sized(XLA, hints(25, 40), blocks=5, requests=9) == (5, 9)  # the caller's own choice


def test_a_cache_of_unknown_use_takes_a_share_of_the_free_memory(sized: Any) -> None:
    sectors, _ = sized(XLA, None)
    free = torch.xla.mem_get_info()[0] // 1000
    assert 0.4 * free < sectors < 0.7 * free


@pytest.mark.parametrize("given", [None, hints(25, 40)])
def test_on_another_device_the_sizes_are_those_of_the_library(sized: Any, given: Any) -> None:
    assert sized(CPU, given) == (7, 25 if given else 1024)


class Buffers:
    def __init__(self, cache: Any, device: torch.device) -> None:
        self.ids = torch.zeros(8, dtype=torch.int32, device=device)
        self.attention_mask: dict[str, torch.Tensor] | None = {"full": torch.zeros(4, 4, device=device)}
        self._reset_static_tensors(full_reset=True)

    def _reset_static_tensors(self, full_reset: bool = False) -> None:
        self.ids.zero_()
        if self.attention_mask is not None:
            self.attention_mask["full"].fill_(-1)

    def get_model_kwargs(self, use_padding: bool = False) -> dict[str, Any]:
        return {"input_ids": self.ids[:4], "index": [self.ids[:2]], "mask": self.attention_mask, "is_causal": False}


class Runner:
    def __init__(self, inputs_and_outputs: Any) -> None:
        self.inputs_and_outputs = inputs_and_outputs
        self.cache = SimpleNamespace(max_tokens_read=2000, max_batch_tokens=100)
        self.pad_inputs = False

    def maybe_pad_inputs(self, num_q_tokens: int, max_kv_read: int, use_decode_fast_path: bool) -> tuple[int, int]:
        return num_q_tokens, max_kv_read

    def warmup(self, model: Any) -> str:
        return "warm"


@pytest.fixture
def library() -> Any:
    own = {"ContinuousBatchingIOs": type("IOs", (Buffers,), {}), "ModelRunner": type("Runner", (Runner,), {})}
    module = module_of(**own)
    continuous_batching.prepare_on_host(module)
    continuous_batching.pad_batches(module)
    return module


def test_batches_are_made_on_the_host_and_sent(library: Any) -> None:
    made = library.ContinuousBatchingIOs(cache=None, device=XLA)
    assert made.ids.device.type == "cpu" and made.attention_mask["full"].sum() == 0  # not touched as a whole
    made.ids[:4] = torch.arange(4, dtype=torch.int32)
    sent = made.get_model_kwargs(use_padding=True)
    made._reset_static_tensors()
    assert made.attention_mask["full"].sum() == -16
    assert sent["input_ids"].device.type == sent["mask"]["full"].device.type == sent["index"][0].device.type == "xla"
    assert sent["input_ids"].tolist() == [0, 1, 2, 3] and sent["is_causal"] is False
    runner = library.ModelRunner(made)
    assert runner.pad_inputs and runner.warmup(None) is None
    assert runner.maybe_pad_inputs(3, 0, False) == (64, 256) and runner.maybe_pad_inputs(65, 1025, False) == (100, 2000)


def test_on_another_device_batches_are_those_of_the_library(library: Any) -> None:
    made = library.ContinuousBatchingIOs(cache=None, device=CPU)
    assert made.attention_mask["full"].sum() == -16 and made.get_model_kwargs()["input_ids"].device == CPU
    runner = library.ModelRunner(made)
    assert not runner.pad_inputs and runner.warmup(None) == "warm" and runner.maybe_pad_inputs(3, 5, False) == (3, 5)
