"""The path of `torch_xla._dynamo.dynamo_bridge` that PyTorch knows."""

from .._dynamo.dynamo_bridge import extract_compiled_graph as extract_compiled_graph
from .._dynamo.dynamo_bridge import is_xla_tensor as is_xla_tensor
