"""Compares the kept texts with those of today, or writes them anew."""

import argparse
import difflib
import sys

from tests.golden import __doc__ as about
from tests.golden.programs import PROGRAMS
from tests.golden.text import FOLDER, JAX_RELEASE, WRITTEN_WITH, path_of, text_of


def main() -> int:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the texts of today")
    write = parser.parse_args().write
    differ = 0
    FOLDER.mkdir(exist_ok=True)
    for name in PROGRAMS:
        now, path = text_of(name), path_of(name)
        before = path.read_text() if path.exists() else ""
        if now != before:
            differ += 1
            lines = difflib.unified_diff(before.splitlines(), now.splitlines(), name, "today", lineterm="")
            sys.stdout.writelines(f"{line}\n" for line in lines)
            if write:
                path.write_text(now)
    if write:
        WRITTEN_WITH.write_text(f"{JAX_RELEASE}\n")
    print(f"{differ} of {len(PROGRAMS)} texts {'written' if write else 'differ'}")
    return int(bool(differ) and not write)


if __name__ == "__main__":
    sys.exit(main())
