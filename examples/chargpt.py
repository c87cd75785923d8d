"""Trains a character-level GPT on English text that Python itself brings, on the xla device, and lets it write.

    python examples/chargpt.py [--steps 600] [--layers 4] [--width 128] [--device xla]

The text is that of `pydoc_data.topics` (Python's language reference, about 465,000 characters), the last tenth
held out. The learning rate warms up and then falls along a cosine, so it is another number at every step; the
training step is compiled at most three times all the same, which is checked: the exit status is 1 otherwise.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from tqdm import tqdm

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl

COMPILES_BOUND = 3
HELD_OUT_BATCHES = 8


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then an MLP, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.attention_out(seen.transpose(1, 2).reshape(x.shape)), dropout)
        return x + self.mlp(x)


class CharGPT(nn.Module):
    """Decoder-only transformer over characters; the output head shares the embedding's weight."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.position)))


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Every piece of `context` characters, each with the characters that follow its own."""

    def __init__(self, tokens: Tensor, context: int) -> None:
        self.tokens = tokens
        self.context = context

    def __len__(self) -> int:
        return len(self.tokens) - self.context

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        piece = self.tokens[start : start + self.context + 1]
        return piece[:-1], piece[1:]


@dataclass(frozen=True)
class Text:
    """The text as numbers: `characters[number]` is a character."""

    characters: list[str]
    train: Tensor
    held_out: Tensor

    def encode(self, text: str) -> Tensor:
        return torch.tensor([self.characters.index(character) for character in text])

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.characters[token] for token in tokens)


def read_text() -> Text:
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    tokens = torch.tensor([number[character] for character in text])
    held_out = len(tokens) // 10
    return Text(characters, tokens[:-held_out], tokens[-held_out:])


def batches(tokens: Tensor, count: int, seed: int, device: torch.device, args: argparse.Namespace) -> Iterator[Tensor]:
    """`count` batches of random windows on `device`."""
    windows = Windows(tokens, args.context)
    order = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(windows, replacement=True, num_samples=count * args.batch_size, generator=order)
    loader = DataLoader(windows, args.batch_size, sampler=sampler)
    return iter(pl.MpDeviceLoader(loader, device) if device.type == "xla" else loader)


def next_character_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def train(model: nn.Module, text: Text, device: torch.device, args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    def share_of_peak(step: int) -> float:
        if step < args.warm_up:
            return (step + 1) / args.warm_up
        return 0.55 + 0.45 * math.cos(math.pi * (step - args.warm_up) / max(1, args.steps - args.warm_up))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)
    model.train()
    with tqdm(total=args.steps, desc=str(device), unit="step") as bar:

        def show(loss: Tensor, norm: Tensor, rate: float) -> None:
            bar.set_postfix(loss=f"{loss.item():.3f}", norm=f"{norm.item():.2f}", lr=f"{rate:.1e}")

        for tokens, targets in batches(text.train, args.steps, args.seed, device, args):
            optimizer.zero_grad()
            loss = next_character_loss(model, tokens, targets)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            bar.update()
            if bar.n % args.log_every == 0:
                values = (loss.detach(), norm, schedule.get_last_lr()[0])
                if device.type == "xla":
                    # After the step has been sent off: a value read here would cut it in two.
                    xm.add_step_closure(show, args=values)
                else:
                    show(*values)


@torch.no_grad()
def held_out_loss(model: nn.Module, text: Text, device: torch.device, args: argparse.Namespace) -> float:
    model.eval()
    drawn = batches(text.held_out, HELD_OUT_BATCHES, 1, device, args)
    losses = [next_character_loss(model, tokens, targets) for tokens, targets in drawn]
    return sum(loss.item() for loss in losses) / len(losses)


@torch.no_grad()
def sample(model: nn.Module, text: Text, device: torch.device, args: argparse.Namespace) -> str:
    """Return the model's continuation of held-out text that ends with the prompt.

    The window keeps its length and moves by one character a step, all on the device: one program serves every step.
    """
    model.eval()
    window = torch.cat([text.held_out, text.encode(args.prompt)])[-args.context :].unsqueeze(0).to(device)
    written = []
    for _ in tqdm(range(args.sample), desc="sampling", unit="char", disable=None):
        logits = model(window)[:, -1] / args.temperature
        token = torch.multinomial(logits.softmax(-1), 1)
        window = torch.cat([window[:, 1:], token], dim=1)
        written.append(token)
        if device.type == "xla":
            torch_xla.sync()
    return text.decode([token.item() for token in written])


def compiles() -> int:
    recorded = met.metric_data("CompileTime")
    return recorded[0] if recorded else 0


def fallbacks() -> list[str]:
    """The operators that ran on the CPU. Reading a number with `.item()` is none of them."""
    return [name for name in met.executed_fallback_ops() if name != "aten::_local_scalar_dense"]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=128, help="characters that the model sees")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--warm-up", type=int, default=50, help="steps until the highest learning rate")
    parser.add_argument("--log-every", type=int, default=20, help="steps between two readings of the loss")
    parser.add_argument("--prompt", default="\n\nThe value of the expression", help="what the sample goes on from")
    parser.add_argument("--sample", type=int, default=400, help="characters to write at the end")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="xla")
    parser.add_argument("--fast", action="store_true", help="a tiny model and few steps")
    args = parser.parse_args(argv)
    if args.fast:
        args.layers, args.width, args.heads, args.context = 2, 32, 2, 32
        args.steps, args.warm_up, args.sample, args.log_every, args.lr = 40, 10, 20, 10, 3e-3
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch_xla.manual_seed(args.seed)
    text = read_text()
    shape = (args.context, args.layers, args.width, args.heads)
    model = CharGPT(len(text.characters), *shape, dropout=args.dropout).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(text.train) + len(text.held_out):,} characters, {len(text.characters)} different ones; "
          f"a model of {parameters:,} parameters")  # fmt: skip

    before = held_out_loss(model, text, device, args)
    compiled = compiles()
    train(model, text, device, args)
    compiled = compiles() - compiled
    after = held_out_loss(model, text, device, args)
    written = sample(model, text, device, args)

    print(f"\n--- {args.prompt.strip()!r}, and what the model writes after it ---\n{args.prompt}{written}\n---\n")
    print(f"held-out loss per character: {before:.3f} before, {after:.3f} after {args.steps} steps "
          f"(guessing: {math.log(len(text.characters)):.3f})")  # fmt: skip
    print(f"{device}: compiles of the training step {compiled}, in the whole run {compiles()}, "
          f"CPU fallbacks {len(fallbacks())}")  # fmt: skip
    missed = []
    if compiled > COMPILES_BOUND:
        missed.append(f"the training step was compiled {compiled} times, more than {COMPILES_BOUND}")
    if not after < before:
        missed.append(f"the held-out loss did not fall: {before:.3f} before, {after:.3f} after")
    if fallbacks():
        missed.append(f"operators ran on the CPU: {', '.join(fallbacks())}")
    for bound in missed:
        print(f"missed: {bound}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
