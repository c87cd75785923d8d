"""View: which elements of a storage a tensor shows, and how they are read and written.

Integers only: neither PyTorch nor JAX.

In: the `Geometry` of a whole storage, its base, and of a tensor on it. Out: for `lowering/`, the steps that read the
tensor out of the storage's value (`read`), and those by which a new value of the tensor becomes a new one of the
storage (`write`).
"""

from .dynamic_start import at_start as at_start
from .dynamic_start import is_moved as is_moved
from .dynamic_start import starts_at as starts_at
from .geometry import Geometry as Geometry
from .overlap import InternalOverlap as InternalOverlap
from .overlap import Overlap as Overlap
from .overlap import has_internal_overlap as has_internal_overlap
from .overlap import overlap_between as overlap_between
from .reads import read as read
from .reads import steps_between as steps_between
from .view_ops import Broadcast as Broadcast
from .view_ops import Gather as Gather
from .view_ops import Pad as Pad
from .view_ops import Reshape as Reshape
from .view_ops import Slice as Slice
from .view_ops import Transpose as Transpose
from .view_ops import ViewOp as ViewOp
from .writes import Replace as Replace
from .writes import Scatter as Scatter
from .writes import Unchanged as Unchanged
from .writes import Update as Update
from .writes import Write as Write
from .writes import write as write
