"""One process after the other asks about the steps; what crashes one or takes too long is an answer too."""

import contextlib
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, made_with
from benchmarks.strangers.questions import Answer
from benchmarks.strangers.table import Stranger
from jaxckpt._files import write_atomically

PATH = RESULTS / f"strangers-py{platform.python_version_tuple()[0]}{platform.python_version_tuple()[1]}.json"


def read_steps(path: Path = PATH) -> dict[str, Any]:
    """Records of all steps that were asked about, by name."""
    return json.loads(path.read_text())["steps"] if path.exists() else {}


def run(strangers: list[Stranger], *, seconds: float, again: bool = False, path: Path = PATH) -> None:
    """Asks what is not known about each step, for at most so many seconds a step.

    Args:
      strangers: The steps, in order.
      seconds: The limit of each.
      again: True to ask anew what failed.
      path: File of the results, written after each answer.
    """
    steps = read_steps(path)
    for stranger in strangers:
        answers = steps.get(stranger.name, {}).get("answers", {})
        if again:
            answers = {name: answer for name, answer in answers.items() if "error" not in answer}
        record = {"family": stranger.family, "sizes": dict(stranger.sizes), "answers": answers}

        def put(question: str, answer: Answer, record: dict[str, Any] = record, name: str = stranger.name) -> None:
            record["answers"][question] = answer
            steps[name] = record | {"made_with": made_with()}
            write_atomically(path, (json.dumps({"made_with": made_with(), "steps": steps}, indent=1) + "\n").encode())
            print(f"{name:24} {question:40} {line(answer)}", flush=True)

        ask(stranger.name, answers, seconds=seconds, put=put)


def ask(name: str, answers: Mapping[str, Answer], *, seconds: float, put: Callable[[str, Answer], None]) -> None:
    """Asks in processes, until all is answered or time is over; a process that ends early is followed by another.

    Args:
      name: The step's name.
      answers: What is known; `put` adds to it.
      seconds: The limit.
      put: Called with each question and its answer.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.strangers.questions", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        alarm = threading.Timer(deadline - time.monotonic(), process.kill)
        alarm.start()
        open_question = _relayed(process, answers, put)
        alarm.cancel()
        if process.wait() == 0:
            return
        is_over = time.monotonic() >= deadline
        error = "TimeoutError: the step's time was over" if is_over else f"the process ended with code {process.wait()}"
        question, begun = open_question or ("start", time.monotonic())
        put(question, {"error": error, "wall_s": time.monotonic() - begun})
        if open_question is None:
            return


def _relayed(
    process: subprocess.Popen[str], answers: Mapping[str, Answer], put: Callable[[str, Answer], None]
) -> tuple[str, float] | None:
    """Hands on what a process answers; returns the question that it left open at its end, and when that was asked."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as known:  # it may have ended already
        json.dump(answers, known)
    open_question = None
    with process.stdout as messages:
        for message in map(json.loads, messages):
            open_question = None if "answer" in message else (message["question"], time.monotonic())
            if "answer" in message:
                put(message["question"], message["answer"])
    return open_question


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
