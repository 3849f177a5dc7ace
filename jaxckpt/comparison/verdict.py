"""The worth of each rule of a policy, or each name of a step: figures of compiled programs with and without it.

`verdicts` makes verdicts.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes

Word = Literal["free", "pays", "costs", "no effect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The effect of one rule or name. Changes are figures with the rule minus figures without it.

    Attributes:
      subject: The name, or the rule as text.
      decision: What it decides: "save", "recompute", "offload", "partition".
      word: "free": less memory or less work, and more of neither. "pays": more of one for less of the other, and the
        less is what its decision is for (less work for a save, less memory for all others). "costs": more of either,
        without that. "no effect": the compiled programs take the same.
      why: Why it has no effect, or moves nothing to the host; "" otherwise.
      value_count: Arrays of the traced step that it decides about, views of one array being one.
      value_bytes: Their bytes on one device.
      bytes_change: Compiled total, bytes per device.
      host_bytes_change: Bytes in host memory.
      flops_change: Arithmetic of the compiled program.
      step_s_change: Estimated seconds of a step.
    """

    subject: str
    decision: str
    word: Word
    why: str = ""
    value_count: int = 0
    value_bytes: int = 0
    bytes_change: int = 0
    host_bytes_change: int = 0
    flops_change: int = 0
    step_s_change: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdicts(Shown):
    """Verdicts on all rules of a policy, or on all names of a step.

    Attributes:
      step: The step's name.
      policy: The policy's name; "all names saved" if there was none.
      target: The machine compiled for.
      total_bytes: Compiled total with all of them, bytes per device.
      host_bytes: Bytes in host memory with all of them.
      flops: Arithmetic of the compiled program with all of them.
      step_s: Estimated seconds of a step with all of them.
      compiles: Programs that were compiled.
      verdicts: In the order of the rules; for names, in the order in which the step computes their values.
    """

    _report: ClassVar[str] = "jaxckpt.report.comparison:verdicts_report"

    step: str
    policy: str
    target: str
    total_bytes: int
    host_bytes: int
    flops: int
    step_s: float
    compiles: int
    verdicts: tuple[Verdict, ...] = ()

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        total = f"{format_bytes(self.total_bytes)} on {self.target}"
        words = ", ".join(f"{each.subject}: {each.word}" for each in self.verdicts)
        return f"{self.policy} on {self.step}, {total}; {words or 'no rules'}"

    def of(self, subject: str) -> Verdict:
        """The verdict on a name, or on a rule by its text.

        Raises:
          KeyError: There is none on it.
        """
        return {each.subject: each for each in self.verdicts}[subject]
