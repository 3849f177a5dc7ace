"""The main job: GPT-2 small planned for an H200 at five budgets, beside JAX's own policies."""

from rich.console import Console

from benchmarks.record import keep
from jaxckpt.cli.demo import demo_report, run_demo
from jaxckpt.report import print_report


def main() -> None:
    result = run_demo(progress=lambda sentence: print(sentence, flush=True))
    print_report(demo_report(result), Console(width=140))
    keep("demo", {"demo": result.to_dict()})


if __name__ == "__main__":
    main()
