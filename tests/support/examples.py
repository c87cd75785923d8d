"""How many examples the long tests of random programs look at: `TEST_EXAMPLES=10` makes it ten times as many."""

import os


def examples(count: int) -> int:
    return round(count * float(os.environ.get("TEST_EXAMPLES", "1")))
