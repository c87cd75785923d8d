"""Combine the checkpoints of all processes to one checkpoint of the whole model.

    python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts --ckpt_prefix /checkpoints/final \\
        --ckpt_suffix "_rank-*-of-*.pth"
"""

import argparse

from .state_dict_utils import consolidate_sharded_model_checkpoints


def main() -> None:
    """Run the command with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ckpt_prefix", required=True, help="what the paths of all checkpoints begin with")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="what they end with, a pattern (%(default)s)")
    parser.add_argument("--save_path", default="", help="where to write; by default the prefix and _consolidated.pth")
    args = parser.parse_args()
    whole, path = consolidate_sharded_model_checkpoints(args.ckpt_prefix, args.ckpt_suffix, args.save_path)
    elements = sum(tensor.numel() for tensor in whole.values())
    print(f"{path}: {len(whole)} tensors, {elements:,} elements")


if __name__ == "__main__":
    main()
