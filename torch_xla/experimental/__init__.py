"""Paths of PyTorch/XLA's experiments, under which programs still look for what has become ordinary."""

from .eager import compile as compile
from .eager import eager_mode as eager_mode
from .eager import eager_mode_context as eager_mode_context
from .eager import is_eager_mode as is_eager_mode
