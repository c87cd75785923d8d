"""View: which elements of a storage a tensor shows, and how they are read and written.

Integers only: neither PyTorch nor JAX.

In: the `Geometry` of a whole storage, its base, and of a tensor on it. Out: for `lowering/`, the steps that read the
tensor out of the storage's value (`read`), and those by which a new value of the tensor becomes a new one of the
storage (`write`).

Doors: geometry, moved, read, write.
"""

from .geometry import Geometry as Geometry
from .moved import at_start as at_start
from .moved import is_moved as is_moved
from .moved import starts_at as starts_at
from .overlap import InternalOverlap as InternalOverlap
from .overlap import Overlap as Overlap
from .overlap import has_internal_overlap as has_internal_overlap
from .overlap import overlap_between as overlap_between
from .read import read as read
from .read import steps_between as steps_between
from .steps import Broadcast as Broadcast
from .steps import Gather as Gather
from .steps import Pad as Pad
from .steps import Reshape as Reshape
from .steps import Slice as Slice
from .steps import Step as Step
from .steps import Transpose as Transpose
from .write import Replace as Replace
from .write import Scatter as Scatter
from .write import Unchanged as Unchanged
from .write import Update as Update
from .write import Write as Write
from .write import write as write
