"""The operators for sharding and donation marks in graphs of `torch.compile`, as functions."""

from .._engine.dispatch.ops.mark_sharding import dynamo_mark_sharding as dynamo_mark_sharding
from .._engine.dispatch.ops.mark_sharding import dynamo_set_buffer_donor_ as dynamo_set_buffer_donor_

dynamo_mark_sharding_xla = dynamo_mark_sharding
dynamo_set_buffer_donor_xla_ = dynamo_set_buffer_donor_
