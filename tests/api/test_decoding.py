"""torch_xla.experimental.decoding: texts written in one program."""

from typing import Any

import pytest
import torch

import torch_xla
from torch_xla.debug import metrics
from torch_xla.experimental.decoding import decode, greedy, pad_prompts, sampling

VOCABULARY, WIDTH, ROOM = 11, 8, 16


class Decoder(torch.nn.Module):
    """One layer of attention over a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, token: torch.Tensor, state: Any) -> Any:
        position, keys, values = state
        query, key, value = self.project(self.embed(token)).chunk(3, -1)
        keys = keys.index_copy(1, position.reshape(1), key.unsqueeze(1))
        values = values.index_copy(1, position.reshape(1), value.unsqueeze(1))
        scores = torch.einsum("bd,bnd->bn", query, keys)
        scores = scores.masked_fill(torch.arange(ROOM, device=token.device) > position, -torch.inf)
        seen = torch.einsum("bn,bnd->bd", scores.softmax(-1), values)
        return self.head(seen), (position + 1, keys, values)


def fresh(device: str, batch: int = 3) -> Any:
    room = torch.zeros(batch, ROOM, WIDTH, device=device)
    return torch.zeros((), dtype=torch.int64, device=device), room, room.clone()


def by_hand(model: Decoder, token: torch.Tensor, count: int, end: int) -> tuple[list[list[int]], list[int]]:
    state, texts = fresh("cpu"), [[0] * count for _ in token]
    lengths, done = [0] * len(token), [False] * len(token)
    for place in range(count):
        logits, state = model(token, state)
        token = torch.where(torch.tensor(done), 0, logits.argmax(-1))
        for row, chosen in enumerate(token.tolist()):
            if not done[row]:
                texts[row][place], lengths[row] = chosen, place + 1
                done[row] = chosen == end
    return texts, lengths


def compilations() -> int:
    found: Any = metrics.metric_data("CompileTime")
    return found[0] if found else 0


def test_a_text_is_what_a_loop_on_the_cpu_writes_to_its_end_token() -> None:
    torch.manual_seed(1)
    model = Decoder()
    token = torch.tensor([1, 5, 9])
    with torch.no_grad():
        plain, _ = by_hand(model, token, 10, -1)
        end = plain[0][4]  # so one text at least ends before the others
        expected = by_hand(model, token, 10, end)
        model = model.to("xla")
        torch_xla.sync()
        before = compilations()
        tokens, lengths, _ = decode(model, token.to("xla"), fresh("xla"), 10, end_token=end)
        torch_xla.sync()
        first = compilations() - before
        assert (tokens.tolist(), lengths.tolist()) == expected
        before = compilations()
        again, lengths, _ = decode(model, (token - 1).to("xla"), fresh("xla"), 10, end_token=end)
        torch_xla.sync()
        assert compilations() == before and first <= 2
        assert (again.tolist(), lengths.tolist()) == by_hand(model.to("cpu"), token - 1, 10, end)


def test_sampling_keeps_to_its_limits_and_differs_from_draw_to_draw() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]], device="xla").expand(400, 5).contiguous()
    shares = torch.softmax(logits[0].cpu(), -1)
    drawn = sampling()(logits).cpu()
    assert (drawn.bincount(minlength=5) / 400 - shares).abs().max() < 0.12
    assert set(sampling(top_k=2)(logits).tolist()) == {0, 1}
    assert set(sampling(top_p=0.7)(logits).tolist()) == {0, 1}  # 0.64, then 0.87
    assert set(sampling(1e-3, top_p=0.1)(logits).tolist()) == {0}
    assert greedy(logits).tolist() == [0] * 400

    def step(token: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state, state

    tokens, lengths, _ = decode(
        step, torch.zeros(2, dtype=torch.int64, device="xla"), torch.zeros(2, 50, device="xla"), 20, choose=sampling()
    )
    assert (
        len(set(tokens[0].tolist())) > 5 and tokens[0].tolist() != tokens[1].tolist() and lengths.tolist() == [20, 20]
    )


@pytest.mark.parametrize(
    ("arguments", "words"), [((0.0,), "above 0"), ((1.0, 0), "top_k=0"), ((1.0, None, 1.5), "1.5")]
)
def test_limits_that_make_no_sense_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sampling(*arguments)


def test_prompts_are_filled_up_on_the_left() -> None:
    ids, mask = torch.tensor([[4, 5, 6], [7, 8, 9]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    padded = pad_prompts(ids, mask, buckets=(4, 6), pad_token=2)
    assert padded["input_ids"].tolist() == [[2, 4, 5, 6], [2, 7, 8, 9]]
    assert padded["attention_mask"].tolist() == [[0, 0, 1, 1], [0, 1, 1, 1]]
    assert [pad_prompts(torch.ones(1, n))["input_ids"].shape[1] for n in (1, 16, 17, 40)] == [16, 16, 32, 64]
    with pytest.raises(ValueError, match="3 tokens; the largest bucket is 2"):
        pad_prompts(ids, buckets=(2,))
    with pytest.raises(ValueError, match=r"shape \(batch,\); got \[2, 3\]"):
        decode(lambda token, state: (token, state), ids, (), 3)
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        decode(lambda token, state: (token, state), ids[0], (), 0)


def test_a_pure_step_is_traced_once_for_each_kind_of_arguments() -> None:
    calls = []
    scores = torch.eye(6).roll(1, 1).to("xla")

    def step(token: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return scores[token], count + 1

    def written(batch: int, pure: bool) -> list[list[int]]:
        first = torch.arange(batch, device="xla")
        return decode(step, first, torch.tensor(0, device="xla"), 3, is_step_pure=pure)[0].tolist()

    assert written(2, True) == [[1, 2, 3], [2, 3, 4]]
    traced = len(calls)
    assert written(2, True) == [[1, 2, 3], [2, 3, 4]] and len(calls) == traced
    assert written(1, True) == [[1, 2, 3]] and len(calls) > traced
    traced = len(calls)
    assert written(1, False) == [[1, 2, 3]] and len(calls) > traced
