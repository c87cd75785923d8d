"""Transfer: move values between devices and the host: copies, DLPack, bytes without a dtype, archives.

Doors: batch_reads, cuda_zero_copy, dlpack, host_copies, storage_bytes.
"""

from .batch_reads import address as address_of_tensor
from .batch_reads import call_when_ready, storage_id
from .batch_reads import compile_only as compile_tensors
from .batch_reads import compute as compute_tensors
from .batch_reads import handles as buffer_handles
from .batch_reads import moved as moved_to_device
from .batch_reads import to_host as copy_to_host
from .dlpack import adopt as from_dlpack
from .dlpack import export as to_dlpack
from .shared_memory import refuse_shared_views
from .tensor_archive import read as read_archive
from .tensor_archive import write as write_archive
