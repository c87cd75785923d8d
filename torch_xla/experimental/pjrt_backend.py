"""The old name of `torch_xla.distributed.xla_backend`."""

from ..distributed.xla_backend import ProcessGroupXla as ProcessGroupXla
