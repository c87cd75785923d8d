"""Combine the state dicts of all processes to one of the whole model."""

import glob
from collections.abc import Sequence
from typing import Any

import torch

from .xla_fully_sharded_data_parallel import clean_name


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[dict[str, torch.Tensor]], shard_metadata: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Return the state dict of the module without wrappers, from those of all processes in the order of their ranks.

    `shard_metadata` is `get_shard_metadata()` of one process. Parameters come from all dicts, buffers from the first.
    Raises `ValueError` if the number of dicts is not the number of processes.
    """
    count = shard_metadata["world_size"]
    if len(state_dict_list) != count:
        raise ValueError(
            f"consolidate_sharded_state_dicts(): the model was divided among {count} processes, and there are "
            f"{len(state_dict_list)} state dicts"
        )
    shards = shard_metadata["shards"]
    names = {name for shard in shards.values() for piece in shard["parameters"] for name in piece["names"]}
    whole: dict[str, torch.Tensor] = {}
    for key, value in state_dict_list[0].items():
        if key in shards:
            flat = torch.cat([each[key].reshape(-1) for each in state_dict_list])
            for piece in shards[key]["parameters"]:
                size = torch.Size(piece["shape"])
                tensor = flat[piece["offset"] : piece["offset"] + size.numel()].reshape(size).clone()
                whole.update(dict.fromkeys(piece["names"], tensor))
        elif clean_name(key) not in names:  # a parameter in a second place is there already
            whole[clean_name(key)] = value
    return whole


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[dict[str, torch.Tensor], str | None]:
    """Read the checkpoints of all processes, `ckpt_prefix + ckpt_suffix` (a glob pattern), and combine them.

    Each file holds a dict with "model", the state dict, and "shard_metadata". Returns the state dict of the module
    without wrappers, on the CPU, and the path at which it was saved as `{"model": state_dict}`: `save_path`, by default
    the prefix and "_consolidated.pth", or `None` with `save_model=False`. Raises `FileNotFoundError` if no file matches
    the pattern. Raises `ValueError` if there is not one file of each process, or if PyTorch/XLA 2 wrote the files.
    """
    saved = save_path or ckpt_prefix + "_consolidated.pth"
    paths = [path for path in sorted(glob.glob(ckpt_prefix + ckpt_suffix)) if path != saved]
    if not paths:
        raise FileNotFoundError(
            f"no file matches {ckpt_prefix + ckpt_suffix}; give --ckpt_prefix and --ckpt_suffix of the checkpoints"
        )
    checkpoints = {path: torch.load(path, map_location="cpu", weights_only=True) for path in paths}
    by_rank: dict[int, str] = {}
    for path, checkpoint in checkpoints.items():
        missing = [key for key in ("model", "shard_metadata") if key not in checkpoint]
        if missing:
            raise ValueError(f"{path} is not a checkpoint of a shard: it lacks {' and '.join(map(repr, missing))}")
        if "shards" not in checkpoint["shard_metadata"]:
            raise ValueError(
                f"{path} was not written by this XlaFullyShardedDataParallel: its shard_metadata has "
                f"{sorted(checkpoint['shard_metadata'])} and not 'shards'. Consolidate checkpoints of PyTorch/XLA 2 "
                "there (`python3 -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts`), and load the result here"
            )
        rank = checkpoint["shard_metadata"]["rank"]
        if rank in by_rank:
            raise ValueError(
                f"both {by_rank[rank]} and {path} are of rank {rank}; give a pattern that names one of them"
            )
        by_rank[rank] = path
    first = checkpoints[paths[0]]["shard_metadata"]
    absent = [rank for rank in range(first["world_size"]) if rank not in by_rank]
    if absent or len(by_rank) != first["world_size"]:
        raise ValueError(
            f"{ckpt_prefix + ckpt_suffix} names the checkpoints of ranks {sorted(by_rank)}; the model was divided "
            f"among {first['world_size']} processes, and {absent} are missing"
        )
    ordered = [checkpoints[by_rank[rank]]["model"] for rank in range(first["world_size"])]
    whole = consolidate_sharded_state_dicts(ordered, first)
    if not save_model:
        return whole, None
    torch.save({"model": whole}, saved)
    return whole, saved
