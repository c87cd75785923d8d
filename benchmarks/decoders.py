"""Models that write text token by token: each step reads the keys and values of the tokens before it from a cache.

The cache is as long as the text may become and is written in place, so that every step has the same shapes. Position
and token stay on the device: no step waits for the one before it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import Gpt2, GptBlock, Llama, LlamaBlock, rotate


class Cache(nn.Module):
    """Keys and values of one layer."""

    def __init__(self, batch: int, heads: int, length: int, size: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(batch, heads, length, size))
        self.register_buffer("values", torch.zeros(batch, heads, length, size))

    def add(self, position: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes those of one token, and gives all."""
        self.keys.index_copy_(2, position, key.to(self.keys.dtype))
        self.values.index_copy_(2, position, value.to(self.values.dtype))
        return self.keys, self.values


class Decoder(nn.Module):
    """The base of both models: a token in, the most likely next token out, and the position advances."""

    def __init__(self, batch: int, length: int) -> None:
        super().__init__()
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
        self.register_buffer("token", torch.zeros(batch, 1, dtype=torch.long))
        self.register_buffer("places", torch.arange(length))
        self.eval()

    def logits(self, token: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """Of the next token, for each text."""
        raise NotImplementedError

    @torch.no_grad()
    def forward(self) -> Tensor:
        """One more token of each text."""
        seen = (self.places <= self.position)[None, None, None, :]
        token = self.logits(self.token, self.position, seen)[:, -1].argmax(-1, keepdim=True)
        self.token.copy_(token)
        self.position.add_(1)
        return token

    @torch.no_grad()
    def restart(self) -> None:
        """Begins a new text."""
        self.position.zero_()
        self.token.zero_()


class GptDecoder(Decoder):
    """GPT-2-like."""

    def __init__(self, batch: int = 1, length: int = 128, layers: int = 6) -> None:
        super().__init__(batch, length)
        self.model = Gpt2(0.0, layers)
        self.caches = nn.ModuleList(Cache(batch, 6, length, 64) for _ in self.model.blocks)

    def logits(self, token: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        x = self.model.embedding(token) + self.model.position(position)
        for block, cache in zip(self.model.blocks, self.caches, strict=True):
            x = self.block(block, cache, x, position, seen)
        return self.model.head(self.model.norm(x))

    def block(self, block: GptBlock, cache: Cache, x: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = block.qkv(block.attention_norm(x)).view(batch, length, 3, block.heads, width // block.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, *cache.add(position, key, value), attn_mask=seen)
        x = x + block.attention_out(mixed.transpose(1, 2).reshape(x.shape))
        return x + block.mlp_out(F.gelu(block.mlp_in(block.mlp_norm(x)), approximate="tanh"))


class LlamaDecoder(Decoder):
    """Llama-like: fewer keys than queries, rotated by their position."""

    def __init__(self, batch: int = 1, length: int = 128, layers: int = 4) -> None:
        super().__init__(batch, length)
        self.model = Llama(layers)
        self.caches = nn.ModuleList(Cache(batch, 2, length, 32) for _ in self.model.blocks)

    def logits(self, token: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        x = self.model.embedding(token)
        cos, sin = self.model.cos[position], self.model.sin[position]
        for block, cache in zip(self.model.blocks, self.caches, strict=True):
            x = self.block(block, cache, x, position, seen, cos, sin)
        return self.model.head(self.model.norm(x))

    def block(
        self, block: LlamaBlock, cache: Cache, x: Tensor, position: Tensor, seen: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        normed = block.attention_norm(x)
        query, key, value = (
            project(normed).unflatten(-1, (-1, block.size)).transpose(1, 2)
            for project in (block.query, block.key, block.value)
        )
        keys, values = cache.add(position, rotate(key, cos, sin), value)
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), keys, values, attn_mask=seen, enable_gqa=True)
        x = x + block.attention_out(mixed.transpose(1, 2).flatten(2))
        normed = block.mlp_norm(x)
        return x + block.down(F.silu(block.gate(normed)) * block.up(normed))


DECODERS = {"gpt2_like": GptDecoder, "llama_like": LlamaDecoder}
