"""Experimental features of PyTorch/XLA, under the names by which programs import them."""

from .eager import compile as compile
from .eager import eager_mode as eager_mode
from .eager import eager_mode_context as eager_mode_context
from .eager import is_eager_mode as is_eager_mode
