"""Makes the virtual environment that `make` uses: PyTorch's CPU build, this package as it lies here, the test tools.

Call it as `python3 tools/install.py .venv`, or with extras of this package: `... .venv-frameworks test,frameworks`. It
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
        if found:
            os.execv(found, [found, *sys.argv])
    have = ".".join(map(str, sys.version_info[:3]))
    sys.exit(f"Python 3.11 or newer is needed; this is {have}. Name one: make PYTHON=/path/to/python3.12 ...")


def say(step: int, text: str) -> None:
    print(f"[{step}/3] {text}", flush=True)


def pip(python: Path, *arguments: str) -> bool:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def has_torch(python: Path) -> bool:
    code = "import sys; from importlib.metadata import version; sys.exit(version('torch').split('+')[0] != sys.argv[1])"
    return subprocess.run([str(python), "-c", code, TORCH], stderr=subprocess.DEVNULL).returncode == 0


def cpu_index_answers() -> bool:
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=PATIENCE):
            return True
    except OSError:
        return False


def install_torch(python: Path) -> bool:
    if has_torch(python):
        return True
    if sys.platform == "linux":
        if cpu_index_answers() and pip(python, f"torch=={TORCH}+cpu", "--extra-index-url", CPU_INDEX):
            return True
        print(f"      {CPU_INDEX} is out of reach: taking the build that pip finds.", flush=True)
    return pip(python, f"torch=={TORCH}")


def main() -> None:
    use_a_recent_python()
    folder = ROOT / sys.argv[1]
    extras = sys.argv[2] if len(sys.argv) > 2 else "test,docs"
    python = folder / "bin" / "python"
    say(1, f"The virtual environment {folder}")
    if not (folder / "bin" / "pip").exists() and subprocess.run([sys.executable, "-m", "venv", str(folder)]).returncode:
        sys.exit("The virtual environment could not be made; Python says why above.")
    say(2, f"PyTorch {TORCH}, for the CPU (about 200 MB)")
    if not install_torch(python):
        sys.exit("PyTorch could not be installed; pip says why above.")
    say(3, f"JAX, what [{extras}] names, and this package (about 300 MB)")
    if not pip(python, "-e", f".[{extras}]"):
        sys.exit("The package could not be installed; pip says why above.")


if __name__ == "__main__":
    main()
