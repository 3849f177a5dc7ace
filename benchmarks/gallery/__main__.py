"""`python -m benchmarks.gallery`: asks about the entries that are not known yet."""

import argparse
import platform

from benchmarks.asking import Asker
from benchmarks.gallery.questions import ADVISED, WRITTEN
from benchmarks.gallery.table import ENTRIES
from benchmarks.record import RESULTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery", description="Problems of public threads.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries; all of them by default")
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of each entry")
    parser.add_argument("--again", action="store_true", help="ask everything anew, not only what is unknown or failed")
    options = parser.parse_args()
    python = "".join(platform.python_version_tuple()[:2])
    asker = Asker(
        module="benchmarks.gallery.questions",
        path=RESULTS / f"gallery-py{python}.json",
        key="entries",
        by_hand=(WRITTEN, ADVISED),
    )
    cases = {name: {"address": ENTRIES[name].address} for name in options.names or ENTRIES}
    asker.run(cases, seconds=options.seconds, again="all" if options.again else "failed")


if __name__ == "__main__":
    main()
