"""Builds the wheel and the source distribution into `out/release/`, and tries the wheel in an environment of its own.

    python3 tools/release.py                 # what the package needs is borrowed from this interpreter's environment
    python3 tools/release.py --everything    # or installed as a user's pip would: hundreds of megabytes

Fails if the wheel holds anything but the package, if the source distribution lacks what a test of it needs, if
`CITATION.cff` has another version, or if the README's first program does not run from what was installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "out" / "release"
INSTALL = ("-m", "pip", "--disable-pip-version-check", "install", "-q")
IN_SOURCES = ("LICENSE", "README.md", "Makefile", "pyproject.toml", "tests/conftest.py", "docs/index.md")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # may name the repository
    done = subprocess.run([str(each) for each in command], cwd=cwd, env=own, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed; the reason is above.\n{done.stdout}")
    return done.stdout


def environment(folder: Path) -> Path:
    """A virtual environment without anything but pip, made anew; its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def build() -> tuple[Path, Path]:
    """The wheel and the source distribution."""
    python = environment(FOLDER / "builder")
    run(python, *INSTALL, "build")
    for old in [*FOLDER.glob("*.whl"), *FOLDER.glob("*.tar.gz")]:
        old.unlink()
    run(python, "-m", "build", "--outdir", FOLDER, ROOT)
    (wheel,), (sources,) = FOLDER.glob("*.whl"), FOLDER.glob("*.tar.gz")
    return wheel, sources


def complaints(wheel: Path, sources: Path) -> list[str]:
    """Return the faults of the two files."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        foreign = [name for name in names if not re.match(r"torch_xla(-[^/]*\.dist-info)?/", name)]
        if foreign:
            found.append(f"{wheel.name} holds {', '.join(foreign[:5])}")
        if not any(name.endswith("LICENSE") for name in names):
            found.append(f"{wheel.name} has no LICENSE")
    with tarfile.open(sources) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    found += [f"{sources.name} lacks {name}" for name in IN_SOURCES if name not in there]
    version = wheel.name.split("-")[1]
    cited = re.search(r"^version: *(\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    if cited and version != cited[1].strip("\"'"):
        found.append(f"CITATION.cff names version {cited[1]}, and {wheel.name} is another")
    return found


def try_it(wheel: Path, everything: bool) -> None:
    """Installs the wheel where nothing of the repository is on the path, and runs the README's first program."""
    home = FOLDER / "clean"
    python = environment(home)
    if everything:
        run(python, *INSTALL, wheel)
    else:
        run(python, *INSTALL, "--no-deps", wheel)
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        # After its own packages, so that the wheel's come first; the lines of an editable installation are not read.
        (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    if program is None:
        sys.exit("README.md has no first program.")
    where = run(python, "-P", "-c", "import torch_xla; print(torch_xla.__file__)", cwd=home).strip()
    if not Path(where).is_relative_to(home):
        sys.exit(f"torch_xla came from {where}, not from the wheel.")
    loss = run(python, "-P", "-c", program[1], cwd=home)
    version = run(python, "-P", "-c", "import torch_xla; print(torch_xla.__version__)", cwd=home).strip()
    print(f"installed {version}; the README's program ends with a loss of {float(loss):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--everything", action="store_true", help="install what the package needs from the index")
    chosen = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheel, sources = build()
    for each in (wheel, sources):
        print(f"{each.name}: {each.stat().st_size / 1000:.0f} kB")
    if found := complaints(wheel, sources):
        sys.exit("\n".join(found))
    try_it(wheel, chosen.everything)


if __name__ == "__main__":
    main()
