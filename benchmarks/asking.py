"""Questions about named cases, each case in a process of its own; what crashes one or takes too long is an answer too.

The child process reads what is known from standard input and writes one JSON object a line: a question before it is
asked, and the answer. So a crash or a hang leaves the answers before it, and the question that it belongs to.
`benchmarks.strangers` and `benchmarks.gallery` ask in this way.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.record import made_with
from jaxckpt import Footprint, InfeasibleBudgetError, Plan, Planner, Step
from jaxckpt._files import write_atomically

START = "start"
"""Stands for the question of a process that ended before it asked one."""
AGAIN = ("failed", "plans", "all")
"""What can be asked anew: failures; these and all plans, but not versions by hand; or everything."""

Answer = dict[str, Any]
Question = tuple[str, Callable[[], Answer]]


def read_records(path: Path, key: str) -> dict[str, Any]:
    """Records of all cases that were asked about, by name."""
    return json.loads(path.read_text())[key] if path.exists() else {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Asks a module's questions about cases, and keeps the answers in a file.

    Attributes:
      module: The module that answers in the child process; its one argument is the name of the case.
      path: The file of the results, written after each answer.
      key: The key of the records in the file.
      by_hand: Beginnings of the questions whose answers do not depend on the planner.
    """

    module: str
    path: Path
    key: str
    by_hand: tuple[str, ...]

    def run(self, cases: Mapping[str, Mapping[str, Any]], *, seconds: float, again: str | None = None) -> None:
        """Asks what is not known about each case, for at most so many seconds a case.

        Args:
          cases: Names, with facts that are kept in the record; answers hold as long as these do not change.
          seconds: The limit of each.
          again: What to ask anew, one of `AGAIN`, or nothing.
        """
        records = read_records(self.path, self.key)
        for name, facts in cases.items():
            asked = {**facts, "versions": made_with()["versions"]}
            answers = known_answers(records.get(name, {}), asked, again=again, by_hand=self.by_hand)
            for question, answer in ask(self.module, name, answers, seconds=seconds):
                answers[question] = answer
                records[name] = {**asked, "date": made_with()["date"], "answers": answers}
                text = json.dumps({"made_with": made_with(), self.key: records}, indent=1)
                write_atomically(self.path, (text + "\n").encode())
                print(f"{name:24} {question:40} {line(answer)}", flush=True)


def known_answers(
    record: Mapping[str, Any], asked: Mapping[str, Any], *, again: str | None, by_hand: tuple[str, ...]
) -> dict[str, Answer]:
    """Answers that still hold: of the same facts and versions, and not to be asked anew."""
    if again == "all" or any(record.get(key) != value for key, value in asked.items()):
        return {}
    return {
        question: answer
        for question, answer in record["answers"].items()
        if again is None or ("error" not in answer and (again == "failed" or question.startswith(by_hand)))
    }


def ask(module: str, name: str, answers: Mapping[str, Answer], *, seconds: float) -> Iterator[tuple[str, Answer]]:
    """Asks in processes, until all is answered or time is over; a process that ends early is followed by another.

    Args:
      module: The module that answers.
      name: The case's name.
      answers: What is known.
      seconds: The limit.

    Yields:
      Each question with its answer.
    """
    deadline = time.monotonic() + seconds
    known = dict(answers)
    while time.monotonic() < deadline:
        command = [sys.executable, "-m", module, name]
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
        error = "TimeoutError: the case's time was over" if is_over else f"the process ended with code {code}"
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


def answer_all(questions: Callable[[Mapping[str, Answer]], Iterator[Question]]) -> None:
    """Answers, in the child process, all that is not known yet; later questions may depend on earlier answers."""
    answers: dict[str, Answer] = json.load(sys.stdin)
    for name, make in questions(answers):
        if name in answers:
            continue
        print(json.dumps({"question": name}), flush=True)
        answers[name] = answered(make)
        print(json.dumps({"question": name, "answer": answers[name]}), flush=True)
        jax.clear_caches()


def answered(make: Callable[[], Answer]) -> Answer:
    """An answer, or what went wrong, with the seconds that it took."""
    begun = time.perf_counter()
    try:
        answer = make()
    except Exception as error:  # a benchmark goes on: a failure is a result
        answer = {"error": f"{type(error).__name__}: {error}"[:2000], "traceback": traceback.format_exc()[-4000:]}
    return answer | {"wall_s": time.perf_counter() - begun}


def planned(step: Step, budget_bytes: int, *, target: str, strategy: str = "optimal") -> Answer:
    """A plan from a fresh planner, or its refusal."""
    planner = Planner(step, target=target)
    try:
        plan = planner.plan(budget=budget_bytes, strategy=strategy)
    except InfeasibleBudgetError as error:
        return {"refused": True, "minimum_bytes": error.minimum_bytes, "compiles": planner.compile_count}
    return of_plan(plan) | {"compiles": planner.compile_count}


def figures(footprint: Footprint) -> Answer:
    """Memory and estimated seconds of a compiled step."""
    names = ("total_bytes", "temp_bytes", "step_s", "compile_s")
    return {name: getattr(footprint, name) for name in names}


def of_plan(plan: Plan) -> Answer:
    """Figures of a plan, as compiled and as predicted, with every attempt on the way."""
    assert plan.footprint is not None
    return figures(plan.footprint) | {
        "predicted_bytes": plan.predicted.total_bytes,
        "predicted_s": plan.predicted.step_s,
        "gap": plan.predicted.gap,
        "attempts": [dataclasses.asdict(attempt) for attempt in plan.attempts],
    }


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
