"""Measures tokens per second of Transformers' `generate`, unmodified, with a static cache.

    python -m benchmarks.generate [--models llama,gpt2] [--dtypes float32,bfloat16] [--batches 1,8] [--tokens 64]
                                  [--contestants eager,inductor,ours] [--rounds 5] [--write docs/benchmarks.md]

Needs `transformers` (`make test-frameworks` makes an environment with it). Small models of random weights, the most
likely token each time, so that all write the same text; all take turns in one process. `inductor` compiles the model's
forward function. The table also shows the number of programs that the second text of `ours` compiled.
"""

import argparse
import importlib
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import torch_xla
from benchmarks import hugging_face, machine, page
from benchmarks.contestants import Contestant, in_turns, ratio
from torch_xla.debug import metrics

HEADING = "## Transformers' generate"
PROMPT = 32
BUILDERS = {"llama": hugging_face.llama, "gpt2": hugging_face.gpt2}


class Generate(Contestant):
    """One model that writes one text a step."""

    def __init__(self, way: str, model: Any, prompt: torch.Tensor, tokens: int) -> None:
        self.model = model.to("xla") if way == "ours" else model
        if way == "inductor":
            self.model.forward = torch.compile(self.model.forward)
        self.prompt, self.tokens, self.way = prompt, tokens, way
        self.written = prompt

    def step(self) -> None:
        ids = self.prompt.to(self.model.device)
        options: Any = {"max_new_tokens": self.tokens, "min_new_tokens": self.tokens, "do_sample": False}
        written = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), cache_implementation="static", disable_compile=True, **options
        )
        self.written = written.cpu()

    def wait(self) -> None:
        if self.way == "ours":
            torch_xla.sync(wait=True)


def built(name: str, dtype: str) -> Any:
    """The bare model: the same for each contestant."""
    torch.manual_seed(0)
    model: Any = BUILDERS[name](importlib.import_module("transformers"), 0.0).model
    model.config.use_cache = True
    return model.to(getattr(torch, dtype)).eval()


def compilations() -> int:
    found: Any = metrics.metric_data("CompileTime")
    return found[0] if found else 0


def seconds(contestant: Any) -> float:
    started = time.perf_counter()
    contestant.step()
    return time.perf_counter() - started


def measure(name: str, dtype: str, batch: int, args: argparse.Namespace) -> tuple[dict[str, list[float]], int]:
    """Tokens per second of every turn, by contestant; programs compiled by the second text of ours."""
    torch._dynamo.reset()
    prompt = torch.randint(1, hugging_face.WORDS, (batch, PROMPT))
    contestants = {way: Generate(way, built(name, dtype), prompt, args.tokens) for way in args.contestants.split(",")}
    for each in contestants.values():
        each.step()
    before = compilations()
    for each in contestants.values():
        each.step()
    compiled = compilations() - before
    first, *others = contestants.values()
    for each in others if dtype == "float32" else ():
        if not each.written.equal(first.written):
            raise RuntimeError(f"{each.way} wrote another text than {first.way}")
    found = in_turns(
        contestants, lambda _, each: batch * args.tokens / seconds(each), args.rounds, f"{name} {dtype} {batch}"
    )
    return found, compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="llama,gpt2")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--contestants", default="eager,inductor,ours")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    machine.confine()
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    names = args.contestants.split(",")
    others = tuple(name for name in names if name != "ours")
    header = ["tokens per second", *names, f"ours / better of {', '.join(others)}", "programs, second text"]
    rows = []
    with machine.watched() as disturbance:
        for name in args.models.split(","):
            for dtype in args.dtypes.split(","):
                for batch in args.batches.split(","):
                    found, compiled = measure(name, dtype, int(batch), args)
                    compared = ratio(found, "ours", others, max) if others and "ours" in found else None
                    shares = [f"{median(found[each]):.0f}" for each in names]
                    gain = "" if compared is None else f"{compared:.2f}"
                    rows.append([f"{name}, {dtype}, batch {batch}", *shares, gain, str(compiled)])
    page.publish(args.write, HEADING, "generate", __doc__, page.table(header, rows), disturbance=disturbance)


if __name__ == "__main__":
    main()
