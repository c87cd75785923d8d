"""Two runs of one model compared tensor by tensor, such as one on `xla` and one on the CPU.

    import torch_xla.debug.model_comparator as mc

    mc.configure("/tmp/run1")          # or MODELCMP_SAVEDIR=/tmp/run1
    hidden = layer(x)
    mc.save("hidden", hidden, step=7)  # in both runs, each with its own folder

Then `mc.compare("/tmp/run1", "/tmp/run2")`, or

    python -m torch_xla.debug.model_comparator /tmp/run1 /tmp/run2

`torch_xla.debug.capture_step` needs no second run: it compares the operators of one step with PyTorch on the CPU.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import torch

from .._engine import diagnostics as _diagnostics

Path = str | os.PathLike[str]


def configure(save_dir: Path | None) -> None:
    """Choose the folder of `save()`; `None` makes it do nothing. Before, MODELCMP_SAVEDIR counts.

    >>> import torch_xla.debug.model_comparator as mc
    >>> mc.configure(None)
    """
    _diagnostics.configure_snapshots(save_dir)


def save(name: str, tensor: torch.Tensor, step: int | None = None) -> None:
    """Save a tensor as `NAME.pt`, with `step` in a folder of that number. Does nothing without a folder.

    Computes the tensor and copies it to the host.

    >>> import tempfile, torch, torch_xla.debug.model_comparator as mc
    >>> folder = tempfile.mkdtemp()
    >>> mc.configure(folder)
    >>> mc.save("ones", torch.ones(2, device="xla"), step=3)
    >>> os.listdir(os.path.join(folder, "3"))
    ['ones.pt']
    >>> mc.configure(None)
    """
    _diagnostics.save_snapshot(name, tensor, step)


def compare_tensors(
    tensor1: torch.Tensor, tensor2: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, max_diffs: int = 25
) -> str:
    """Return where two tensors differ by more than `atol + rtol * |tensor2|`, as text; empty if they do not.

    >>> import torch, torch_xla.debug.model_comparator as mc
    >>> print(mc.compare_tensors(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])), end="")
      1 of 2 elements differ, by 0.5 at most:
        [1]: 2 and 2.5
    """
    return _diagnostics.compare_tensors(tensor1, tensor2, rtol, atol, max_diffs)


def tensor_file_compare(path1: Path, path2: Path, rtol: float = 1e-5, atol: float = 1e-8, max_diffs: int = 25) -> str:
    """Return `compare_tensors` of two files that `save()` wrote."""
    return _diagnostics.compare_snapshots(path1, path2, rtol, atol, max_diffs)


def compare(save_dir1: Path, save_dir2: Path, rtol: float = 1e-5, atol: float = 1e-8, max_diffs: int = 25) -> str:
    """Return where the tensors in two folders differ, those saved first first, as text; empty if they do not.

    Tensors that only one folder has are named too. Raises `FileNotFoundError` if one is no folder.

    >>> import tempfile, torch, torch_xla.debug.model_comparator as mc
    >>> one, other = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> for folder, device in ((one, "cpu"), (other, "xla")):
    ...     mc.configure(folder)
    ...     mc.save("three", torch.full((2,), 3.0, device=device))
    >>> mc.compare(one, other)
    ''
    >>> mc.configure(None)
    """
    return _diagnostics.compare_snapshot_folders(save_dir1, save_dir2, rtol, atol, max_diffs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 1 if something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.debug.model_comparator", description=__doc__.split("\n")[0]
    )
    parser.add_argument("save_dir1", help="what one run saved")
    parser.add_argument("save_dir2", help="what the other run saved")
    parser.add_argument("--rtol", type=float, default=1e-5, help="difference allowed relative to the second (1e-5)")
    parser.add_argument("--atol", type=float, default=1e-8, help="difference allowed in any case (1e-8)")
    parser.add_argument("--max_diffs", type=int, default=25, help="elements shown of each tensor (25)")
    try:
        found = compare(**vars(parser.parse_args(arguments)))
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    print(found, end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
