"""One process after the other asks about the steps; what crashes one or takes too long is an answer too."""

import contextlib
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, made_with
from benchmarks.strangers.questions import RULE, WRITTEN, Answer
from benchmarks.strangers.table import Stranger
from jaxckpt._files import write_atomically

PATH = RESULTS / f"strangers-py{platform.python_version_tuple()[0]}{platform.python_version_tuple()[1]}.json"

START = "start"
"""Stands for the question of a process that ended before it asked one."""
AGAIN = ("failed", "plans", "all")
"""What can be asked anew: failures; these and all plans, but not the rules; or everything."""


def read_steps(path: Path = PATH) -> dict[str, Any]:
    """Records of all steps that were asked about, by name."""
    return json.loads(path.read_text())["steps"] if path.exists() else {}


def run(strangers: Sequence[Stranger], *, seconds: float, again: str | None = None, path: Path = PATH) -> None:
    """Asks what is not known about each step, for at most so many seconds a step.

    Args:
      strangers: The steps, in order.
      seconds: The limit of each.
      again: What to ask anew, one of `AGAIN`, or nothing.
      path: File of the results, written after each answer.
    """
    steps = read_steps(path)
    for stranger in strangers:
        asked = {"family": stranger.family, "sizes": dict(stranger.sizes), "versions": made_with()["versions"]}
        answers = known_answers(steps.get(stranger.name, {}), asked, again=again)
        for question, answer in ask(stranger.name, answers, seconds=seconds):
            answers[question] = answer
            steps[stranger.name] = {**asked, "date": made_with()["date"], "answers": answers}
            write_atomically(path, (json.dumps({"made_with": made_with(), "steps": steps}, indent=1) + "\n").encode())
            print(f"{stranger.name:24} {question:40} {line(answer)}", flush=True)


def known_answers(record: Mapping[str, Any], asked: Mapping[str, Any], *, again: str | None) -> dict[str, Answer]:
    """Answers that still hold: of the same sizes and versions, and not to be asked anew."""
    if again == "all" or any(record.get(key) != value for key, value in asked.items()):
        return {}
    return {
        question: answer
        for question, answer in record["answers"].items()
        if again is None or ("error" not in answer and (again == "failed" or question.startswith((WRITTEN, RULE))))
    }


def ask(name: str, answers: Mapping[str, Answer], *, seconds: float) -> Iterator[tuple[str, Answer]]:
    """Asks in processes, until all is answered or time is over; a process that ends early is followed by another.

    Args:
      name: The step's name.
      answers: What is known.
      seconds: The limit.

    Yields:
      Each question with its answer.
    """
    deadline = time.monotonic() + seconds
    known = dict(answers)
    while time.monotonic() < deadline:
        command = [sys.executable, "-m", "benchmarks.strangers.questions", name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        alarm = threading.Timer(deadline - time.monotonic(), process.kill)
        alarm.start()
        question, begun = None, time.monotonic()
        for message in _messages(process, known):
            question, begun = message["question"], time.monotonic()
            if "answer" in message:
                known[question] = message["answer"]
                yield question, message["answer"]
                question = None
        alarm.cancel()
        code = process.wait()
        if code == 0:
            return
        is_over = time.monotonic() >= deadline
        error = "TimeoutError: the step's time was over" if is_over else f"the process ended with code {code}"
        known[question or START] = answer = {"error": error, "wall_s": time.monotonic() - begun}
        yield question or START, answer
        if question is None:
            return


def _messages(process: subprocess.Popen[str], known: Mapping[str, Answer]) -> Iterator[dict[str, Any]]:
    """Tells a process what is known, and reads what it writes until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as reader:  # it may have ended already
        json.dump(known, reader)
    with process.stdout as lines:
        yield from map(json.loads, lines)


def line(answer: Answer) -> str:
    """An answer in one line."""
    if "error" in answer:
        text = answer["error"].splitlines()[0][:150]
    elif "refused" in answer:
        text = f"refused: at least {answer['minimum_bytes'] / 2**20:,.0f} MiB, {answer['compiles']} compiles"
    else:
        text = f"{answer['total_bytes'] / 2**20:,.0f} MiB {1e3 * answer['step_s']:.2f} ms"
        text += f", {answer['compiles']} compiles" if "compiles" in answer else ""
    return f"{text}; {answer['wall_s']:.0f} s"
