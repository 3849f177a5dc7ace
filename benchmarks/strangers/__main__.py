"""`python -m benchmarks.strangers`: asks about the battery, or prints the tables of the answers."""

import argparse

from benchmarks.asking import AGAIN
from benchmarks.strangers.findings import tables
from benchmarks.strangers.running import read_steps, run
from benchmarks.strangers.table import STRANGERS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strangers", description="Plans against simple rules.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="steps; all of them by default")
    parser.add_argument("--seconds", type=float, default=900.0, help="limit of each step")
    parser.add_argument("--again", choices=AGAIN, help="ask anew what failed, that and all plans, or everything")
    parser.add_argument("--tables", action="store_true", help="print the tables of the results")
    options = parser.parse_args()
    if options.tables:
        print(tables(read_steps()))
        return
    run([STRANGERS[name] for name in options.names or STRANGERS], seconds=options.seconds, again=options.again)


if __name__ == "__main__":
    main()
