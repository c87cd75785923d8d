#!/usr/bin/env bash
# A compiled function whose graph finds out the longest sequence of a jagged nested tensor has a result with one inner
# tensor more than its gradient will have, and AOTAutograd's backward asserts that there are equally many. The fused
# attention of jagged tensors asks for that length, so it has no gradient when compiled. It has one if the lengths were
# given with the tensor: nested_tensor_from_jagged(..., min_seqlen=, max_seqlen=).
# It needs PyTorch itself; the build for the CPU is enough. Seen with torch 2.13.0:
#   torch 2.13.0+cpu
#   lengths found in the graph: AssertionError
#   lengths given: [6.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import torch
from torch.nested import nested_tensor_from_jagged

warnings.simplefilter("ignore")
print("torch", torch.__version__)


def gradient(**lengths):
    weight = torch.ones(1, requires_grad=True)

    @torch.compile(backend="aot_eager")
    def scaled(jagged):
        found = jagged * weight
        found._get_max_seqlen()
        return found * 2

    scaled(nested_tensor_from_jagged(torch.ones(3, 1), torch.tensor([0, 1, 3]), **lengths)).values().sum().backward()
    return weight.grad.tolist()


try:
    found = gradient()
except AssertionError as error:
    found = type(error).__name__
given = gradient(min_seqlen=1, max_seqlen=2)
print("lengths found in the graph:", found)
print("lengths given:", given)
assert found == "AssertionError", "such a graph has a gradient now"
assert given == [6.0]
PYTHON
