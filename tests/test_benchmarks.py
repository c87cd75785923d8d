"""The benchmarks measure what they claim to: the same models, the same steps."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.contestants import Eager, OpenXla, Ours, Replay
from benchmarks.jax_encoder import JaxEncoder
from benchmarks.models import WORKLOADS, Encoder


def losses(contestant: Eager | Ours, steps: int) -> list[float]:
    found: list[Tensor] = []
    for _ in range(steps):
        found.append(contestant.training.step())
        contestant.wait()
    return [loss.item() for loss in found]


def test_the_encoder_in_jax_is_the_encoder_in_pytorch() -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = Encoder(0.0, layers=2), WORKLOADS["encoder"].batch()
    in_jax = JaxEncoder(model, (inputs, targets), layers=2, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(torch.tensor(float(in_jax.step())), loss.detach(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "encoder", "llama_like"])
def test_both_devices_are_given_the_same_training(name: str) -> None:
    # One step's rounding is amplified by AdamW, which divides by the size of the gradient.
    expected = losses(Eager(WORKLOADS[name], 0.0), 4)
    assert losses(Ours(WORKLOADS[name], 0.0), 4) == pytest.approx(expected, abs=1e-4)


def test_a_compiled_model_is_given_the_same_training() -> None:
    assert losses(OpenXla(WORKLOADS["mlp"], 0.0), 4) == pytest.approx(losses(Eager(WORKLOADS["mlp"], 0.0), 4), abs=1e-4)


def test_a_replayed_step_is_the_same_training() -> None:
    ours = Replay(WORKLOADS["mlp"], 0.0)
    found = [ours.replayed().item() for _ in range(6)]
    assert ours.replayed.is_replayed
    assert found == pytest.approx(losses(Eager(WORKLOADS["mlp"], 0.0), 6), abs=1e-4)
