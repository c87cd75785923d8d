"""The module in which PyTorch/XLA 2 kept the PyTorch functions that it replaced. This package replaces none."""

from torch.nn.utils import clip_grad_norm_ as clip_grad_norm_
