"""The module in which PyTorch/XLA 2 kept the PyTorch functions that it replaced. Here it is PyTorch's own."""

from torch.nn.utils import clip_grad_norm_ as clip_grad_norm_
