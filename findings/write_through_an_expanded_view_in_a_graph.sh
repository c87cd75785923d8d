#!/usr/bin/env bash
# In a graph of torch.compile, zero_() of an expanded tensor of ones gives -1.
#
# AOTAutograd replaces a write through a view by a new base. For an expanded view it adds what was written to all copies
# of an element and takes the old value away, which is right if one copy was written, and wrong if the call wrote to all.
# fill_, zero_ and masked_fill_ may write to expanded tensors in PyTorch; add_, which eager mode refuses, is accepted.
#
# Output seen:
#   torch 2.13.0+cpu
#   eager: zero_ [0.0, 0.0], fill_(2) [2.0, 2.0], add_(1) refused
#   graph: zero_ [-1.0, -1.0], fill_(2) [3.0, 3.0], add_(1) [3.0, 3.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PYTHON'
import torch

print(f"torch {torch.__version__}")
CALLS = {"zero_": lambda e: e.zero_(), "fill_(2)": lambda e: e.fill_(2), "add_(1)": lambda e: e.add_(1)}


def written(name, compiles):
    def program(x):
        return CALLS[name]((x * 1).expand(2))

    try:
        found = (torch.compile(program, backend="aot_eager") if compiles else program)(torch.ones(1)).tolist()
    except RuntimeError:
        return f"{name} refused"
    return f"{name} {found}"


for kind in ("eager", "graph"):
    print(f"{kind}: {', '.join(written(name, kind == 'graph') for name in CALLS)}")
assert written("zero_", True) == "zero_ [-1.0, -1.0]", "the behaviour has changed"
PYTHON
