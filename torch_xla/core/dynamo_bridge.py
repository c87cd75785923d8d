"""The module `torch_xla._dynamo.dynamo_bridge`, under the name that PyTorch imports."""

from .._dynamo import dynamo_bridge as _bridge
from .._dynamo.dynamo_bridge import Deduper as Deduper
from .._dynamo.dynamo_bridge import GraphInputMatcher as GraphInputMatcher
from .._dynamo.dynamo_bridge import NoneRemover as NoneRemover
from .._dynamo.dynamo_bridge import UnsupportedNodesCollector as UnsupportedNodesCollector
from .._dynamo.dynamo_bridge import alias_with_buffer_donor_config as alias_with_buffer_donor_config
from .._dynamo.dynamo_bridge import dynamo_debug as dynamo_debug
from .._dynamo.dynamo_bridge import extract_compiled_graph as extract_compiled_graph
from .._dynamo.dynamo_bridge import extract_compiled_graph_helper as extract_compiled_graph_helper
from .._dynamo.dynamo_bridge import get_fallback_ops as get_fallback_ops
from .._dynamo.dynamo_bridge import is_xla_tensor as is_xla_tensor
from .._dynamo.dynamo_bridge import ptxla_debug as ptxla_debug

__getattr__ = _bridge.__getattr__
