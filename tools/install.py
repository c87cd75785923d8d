"""Create the virtual environment for `make`: PyTorch's CPU build, this checkout of the package, the test tools.

Call it as `python3 tools/install.py .venv`, with extras of this package as `... .venv-frameworks test,frameworks`, and
with another release of PyTorch as `... folder test 2.11.0`.
"""

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = (3, 11)
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3.14")

TORCH = "2.13.0"
# PyPI's build for Linux brings gigabytes of CUDA libraries; the builds for the CPU alone are in an index of PyTorch's.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PATIENCE = 5  # seconds until that index counts as out of reach


def use_a_recent_python() -> None:
    """Starts again under another interpreter if this one is too old. (So this file must parse under an old one.)"""
    if sys.version_info >= OLDEST:
        return
    for name in CANDIDATES:
        found = shutil.which(name)
        # One that pyenv puts on the path may only say that it is not chosen.
        if found and subprocess.call([found, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(found, [found, *sys.argv])
    uv = shutil.which("uv")
    if uv:
        os.execv(uv, [uv, "run", "-q", "--no-project", "--python", ">=3.11,<3.15", "python", *sys.argv])
    have = ".".join(map(str, sys.version_info[:3]))
    sys.exit(f"Python 3.11 or newer is needed; this is {have}. Name one: make PYTHON=/path/to/python3.12 ...")


def say(step: int, text: str) -> None:
    print(f"[{step}/3] {text}", flush=True)


def pip(python: Path, *arguments: str) -> bool:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def has_torch(python: Path, release: str) -> bool:
    code = "import sys; from importlib.metadata import version; sys.exit(version('torch').split('+')[0] != sys.argv[1])"
    return subprocess.run([str(python), "-c", code, release], stderr=subprocess.DEVNULL).returncode == 0


def cpu_index_answers() -> bool:
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=PATIENCE):
            return True
    except OSError:
        return False


def install_torch(python: Path, release: str, index: list[str]) -> bool:
    if has_torch(python, release):
        return True
    if index and pip(python, f"torch=={release}+cpu", *index):
        return True
    if sys.platform == "linux":
        print(f"      {CPU_INDEX} is out of reach: taking the build that pip finds.", flush=True)
    return pip(python, f"torch=={release}")


def set_aside_what_does_not_fit(python: Path) -> None:
    """A torchvision that was built for another PyTorch breaks whatever imports it, Transformers among them."""
    code = "import importlib.util as i, sys; i.find_spec('torchvision') is None or __import__('torchvision')"
    if subprocess.run([str(python), "-c", code], capture_output=True).returncode:
        print(
            "      torchvision was built for another PyTorch: taken out again. What needs it is not tested.", flush=True
        )
        subprocess.run([str(python), "-m", "pip", "uninstall", "-qy", "torchvision"], check=True)


def main() -> None:
    use_a_recent_python()
    folder = ROOT / sys.argv[1]
    extras = sys.argv[2] if len(sys.argv) > 2 else "test,docs"
    release = sys.argv[3] if len(sys.argv) > 3 else TORCH
    python = folder / "bin" / "python"
    index = ["--extra-index-url", CPU_INDEX] if sys.platform == "linux" and cpu_index_answers() else []
    say(1, f"The virtual environment {folder}")
    if not (folder / "bin" / "pip").exists() and subprocess.run([sys.executable, "-m", "venv", str(folder)]).returncode:
        sys.exit("The virtual environment could not be made; Python says why above.")
    say(2, f"PyTorch {release}, for the CPU (about 200 MB)")
    if not install_torch(python, release, index):
        sys.exit("PyTorch could not be installed; pip says why above.")
    say(3, f"JAX, what [{extras}] names, and this package (about 300 MB)")
    if not pip(python, "-e", f".[{extras}]", f"torch=={release}", *index):
        sys.exit("The package could not be installed; pip says why above.")
    set_aside_what_does_not_fit(python)


if __name__ == "__main__":
    main()
