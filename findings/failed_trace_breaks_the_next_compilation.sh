#!/usr/bin/env bash
# After torch.compile could not trace one function, it cannot compile the next one, which it compiles otherwise.
#
# Dynamo cannot trace vmap(hessian(det)), and says so. The next function with torch.func, vmap(grad(det)), then fails in
# AOTAutograd: "Please convert all Tensors to FakeTensors first". The one after it compiles again. With the backend
# "eager", which AOTAutograd has no part in, all three do as alone. torch._dynamo.reset() between them does not help.
#
# Output seen:
#   torch 2.13.0+cpu: grad compiled; jacrev compiled;
#   torch 2.13.0+cpu: hessian TorchRuntimeError; grad BackendCompilerFailed; jacrev compiled;
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
cat > "$folder/compile.py" <<'PYTHON'
import sys

import torch
from torch.func import grad, hessian, jacrev, vmap

x = torch.eye(2).expand(3, 2, 2) * 2 + 1
FUNCTIONS = {
    "hessian": lambda a: vmap(hessian(torch.linalg.det))(a),
    "grad": lambda a: vmap(grad(torch.linalg.det))(a),
    "jacrev": lambda a: vmap(jacrev(torch.linalg.det))(a),
}
print(f"torch {torch.__version__}:", end="")
for name in sys.argv[1:]:
    try:
        torch.compile(FUNCTIONS[name], backend="aot_eager")(x)
        print(f" {name} compiled", end=";")
    except Exception as error:
        print(f" {name} {type(error).__name__}", end=";")
print()
PYTHON
"$folder/venv/bin/python" "$folder/compile.py" grad jacrev 2>/dev/null
"$folder/venv/bin/python" "$folder/compile.py" hessian grad jacrev 2>/dev/null | tee "$folder/said"
grep -q "grad BackendCompilerFailed; jacrev compiled" "$folder/said" || { echo "the behaviour has changed"; exit 1; }
