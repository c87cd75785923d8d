"""Generate text on the device: all tokens in one loop, from prompts that are padded to a few lengths."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.nn import functional as F

from .._engine.compiled.loops import while_loops

S = TypeVar("S")

Choice = Callable[[torch.Tensor], torch.Tensor]


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """Return the most likely token of each row: int64 of shape (batch,), from logits of shape (batch, vocabulary).

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.decoding import greedy
    >>> greedy(torch.tensor([[0.1, 2.0, 0.3]], device="xla"))
    tensor([1], device='xla:0')
    """
    return logits.argmax(-1)


def sampling(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Choice:
    """Return a function that samples a token on the device, from the `top_k` or the `top_p` most likely ones.

    The function takes logits of shape (batch, vocabulary) and returns int64 of shape (batch,). `top_p` keeps the most
    likely tokens with this total probability. With both limits, a token must be within both; the most likely token
    always is. Raises `ValueError` for a temperature that is not above 0, a `top_k` below 1 and a `top_p` outside of
    (0, 1].

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.decoding import sampling
    >>> choose = sampling(temperature=0.7, top_k=2)
    >>> choose(torch.tensor([[5.0, 5.0, -5.0]], device="xla")).item() in (0, 1)
    True
    """
    if not temperature > 0:
        raise ValueError(
            f"sampling() needs a temperature above 0; got {temperature}. Use greedy for the likeliest token"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"sampling() chooses among at least one token; got top_k={top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"sampling() needs top_p above 0 and at most 1; got {top_p}")

    def choose(logits: torch.Tensor) -> torch.Tensor:
        scores = logits.float() / temperature
        if top_k is not None and top_k < scores.shape[-1]:
            least = scores.topk(top_k, -1).values[..., -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if top_p is not None and top_p < 1:
            ordered, order = scores.sort(-1, descending=True)
            shares = ordered.softmax(-1)
            # Those in front of a token make up less than asked for: so the first always stays.
            kept = shares.cumsum(-1) - shares < top_p
            scores = scores.masked_fill(~torch.zeros_like(kept).scatter(-1, order, kept), -torch.inf)
        return torch.multinomial(scores.softmax(-1), 1).squeeze(-1)

    return choose


def decode(
    step: Callable[[torch.Tensor, S], tuple[torch.Tensor, S]],
    token: torch.Tensor,
    state: object,
    max_new_tokens: int,
    *,
    choose: Choice = greedy,
    end_token: int | None = None,
    pad_token: int = 0,
    is_step_pure: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Generate up to `max_new_tokens` tokens in one program, without a read on the host.

    `logits, state = step(token, state)` takes the last token of each text, int64 of shape (batch,), and the state:
    caches of keys and values, positions, and other tensors, in any nesting, whose sizes and dtypes must not change. It
    returns logits of shape (batch, vocabulary) and the next state. It may read parameters, but may write only to the
    state. `token` is its first token. `choose` maps logits to a token: `greedy`, `sampling(...)` or your own function.

    Returns the tokens, int64 of shape (batch, max_new_tokens), padded with `pad_token` after `end_token`; the number of
    tokens of each text, int64 of shape (batch,), including the end token; and the last state. The loop ends when all
    texts have ended. The device decides the number of rounds, which is not a part of the program.

    `step` is traced at every call. `is_step_pure=True` declares that its Python code only computes, and always the
    same. A function (not a method) is then traced once for each kind of arguments, and keeps the tensors that it read.

    Raises `ValueError` if `token` is not of shape (batch,), or if `max_new_tokens` is below 1.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.decoding import decode
    >>> def step(token, steps):  # a model that counts
    ...     return -(torch.arange(8, device="xla") - token[:, None] - 1).abs(), steps + 1
    >>> tokens, lengths, steps = decode(
    ...     step, torch.tensor([2, 5], device="xla"), torch.zeros((), dtype=torch.int64, device="xla"), 6, end_token=7)
    >>> tokens
    tensor([[3, 4, 5, 6, 7, 0],
            [6, 7, 0, 0, 0, 0]], device='xla:0')
    >>> lengths.tolist(), steps.item()
    ([5, 2], 5)
    """
    if token.dim() != 1:
        raise ValueError(f"decode() takes the last token of each text, of shape (batch,); got {list(token.shape)}")
    if max_new_tokens < 1:
        raise ValueError(f"decode() writes at least one token; got max_new_tokens={max_new_tokens}")

    token = token.to(torch.int64)
    tokens = token.new_full((len(token), max_new_tokens), pad_token)
    start = (
        token.new_zeros(()),
        torch.ones_like(token, dtype=torch.bool),
        torch.zeros_like(token),
        token,
        tokens,
        state,
    )
    key = (choose, end_token, pad_token, max_new_tokens) if is_step_pure else None
    goes_on: Callable[..., torch.Tensor] = lambda count, unfinished, *_: (count < max_new_tokens) & unfinished.any()  # noqa: E731
    loop = while_loops.loop_of(step, key, goes_on, _round(step, choose, end_token, pad_token), start)
    _, _, lengths, _, tokens, state = loop.run(start)
    return tokens, lengths, state


def _round(step: Callable[..., Any], choose: Choice, end_token: int | None, pad_token: int) -> Callable[..., Any]:
    """Return a function that generates one more token of each text that has not ended."""

    def once(
        count: torch.Tensor, unfinished: torch.Tensor, lengths: torch.Tensor, last: torch.Tensor,
        tokens: torch.Tensor, state: object,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, object]:  # fmt: skip
        logits, state = step(last, state)
        chosen = torch.where(unfinished, choose(logits).to(torch.int64), pad_token)
        tokens = tokens.index_copy(1, count.reshape(1), chosen.unsqueeze(1))
        lengths = lengths + unfinished
        if end_token is not None:
            unfinished = unfinished & (chosen != end_token)
        return count + 1, unfinished, lengths, chosen, tokens, state

    return once


def pad_prompts(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    buckets: Sequence[int] | None = None,
    pad_token: int = 0,
) -> dict[str, torch.Tensor]:
    """Pad prompts on the left to the next of a few lengths, so that few programs serve prompts of all lengths.

    `input_ids` and `attention_mask` have shape (batch, length), as tokenizers return them; the default mask has all
    tokens. `buckets` are the lengths to pad to, ascending, by default the powers of two from 16 on. Pad tensors on the
    CPU, before you move them to the device: on the device, each length is a separate small program.

    Returns the arguments of `generate` of Transformers. With `cache_implementation="static"` and one `max_length` for
    all prompts, each bucket has one program for the prompt, and all share the program for further tokens.

    Raises `ValueError` for a prompt that is longer than the largest bucket.

    >>> import torch
    >>> from torch_xla.experimental.decoding import pad_prompts
    >>> pad_prompts(torch.tensor([[5, 6, 7]]), buckets=(4, 8))
    {'input_ids': tensor([[0, 5, 6, 7]]), 'attention_mask': tensor([[0, 1, 1, 1]])}
    """
    length = input_ids.shape[-1]
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if buckets is None:
        width = max(16, 1 << (length - 1).bit_length())
    else:
        found = [bucket for bucket in sorted(buckets) if bucket >= length]
        if not found:
            raise ValueError(
                f"pad_prompts(): a prompt has {length} tokens; the largest bucket is {max(buckets, default=0)}"
            )
        width = found[0]
    missing = (width - length, 0)
    return {"input_ids": F.pad(input_ids, missing, value=pad_token), "attention_mask": F.pad(mask, missing)}
