"""Patterns on paths of modules: regular expressions, as mindformers takes them, as globs where that is possible.

A path such as `feed_forward.w1.activation.silu` leads from a layer through its modules to a module or to an operator
of one. Dots of the path become "/"; an operator at its end becomes a primitive of JAX, for JAX has no scopes for them.

Not here: repetitions of more than one character, references and look-arounds, which no glob says.
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

PRIMITIVES: Mapping[str, str] = {
    **{
        word: word for word in ("mul", "sub", "div", "exp", "tanh", "rsqrt", "sqrt", "neg", "pow", "concatenate", "erf")
    },
    "add": "{add,add_any}",
    "real_div": "div",
    "sigmoid": "logistic",
    "silu": "logistic",
    "gelu": "{erf,tanh}",
    "matmul": "dot_general",
    "batch_matmul": "dot_general",
    "bmm": "dot_general",
    "cast": "convert_element_type",
    "concat": "concatenate",
    "softmax": "{exp,exp2,div,sub,reduce_max,reduce_sum}",
}
"""Names that models of MindSpore give their operators, and the primitives that do the same in JAX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternTarget:
    """Where a pattern points in a JAX model.

    Attributes:
      scope: Glob on the scope, or None.
      primitive: Glob on the primitive, or None.
      loose: What the globs match that the pattern does not, or "".
    """

    scope: str | None
    primitive: str | None
    over_matches: str = ""


class PatternError(ValueError):
    """A pattern that no glob says."""


def target_of_pattern(pattern: str) -> PatternTarget:
    r"""The place that a regular expression on paths below a layer means.

    Args:
      pattern: Such as r"feed_forward\.mul"; it matches whole paths.

    Raises:
      PatternError: It is no regular expression, or one that no glob says.

    Example:
      >>> place_of_pattern(r"feed_forward\.mul")
      Place(scope='*/feed_forward', primitive='mul', loose='')
      >>> place_of_pattern(r"(attention|attn)\.w[qkv]").scope
      '*/{attention,attn}/w[qkv]'
    """
    try:
        with warnings.catch_warnings():  # Python warns of what later versions may read otherwise
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"is no regular expression ({error})") from error
    parser = _Parser(pattern)
    glob = parser.either()
    if parser.rest:
        raise PatternError(f"has {parser.rest[0]!r} where no glob has anything like it")
    scope, primitive = _operator(glob)
    return PatternTarget(scope=scope, primitive=primitive, over_matches=parser.over_matches)


def _operator(glob: str) -> tuple[str | None, str | None]:
    """The operator at the end of a path apart from the modules before it."""
    modules, _, last = glob.rpartition("/")
    if last in PRIMITIVES and "{" not in modules:
        return (f"*/{modules}" if modules else None), PRIMITIVES[last]
    return f"*/{glob}", None


_ESCAPED = {".": "/", "d": "[0-9]", "w": "[a-zA-Z0-9_]", "-": "-", "_": "_", "/": "/"}


class _Parser:
    """Reads a regular expression from left to right and writes a glob."""

    def __init__(self, pattern: str):
        self.rest = pattern.removeprefix("^").removesuffix("$") if not pattern.endswith("\\$") else pattern
        self.over_matches = ""

    def either(self) -> str:
        choices = [self.sequence()]
        while self.rest.startswith("|"):
            self.take(1)
            choices.append(self.sequence())
        return choices[0] if len(choices) == 1 else f"{{{','.join(choices)}}}"

    def sequence(self) -> str:
        written = ""
        while self.rest and self.rest[0] not in "|)":
            written += self.repeated(self.atom())
        return written

    def atom(self) -> str:
        sign = self.take(1)
        match sign:
            case ".":
                return "?"
            case "\\":
                escaped = self.take(1)
                if escaped not in _ESCAPED:
                    raise PatternError(f"has '\\{escaped}', which no glob says")
                return _ESCAPED[escaped]
            case "[":
                return self.choice()
            case "(":
                self.rest = self.rest.removeprefix("?:")
                if self.rest.startswith("?"):
                    raise PatternError("looks ahead, behind or back, which no glob does")
                inner = self.either()
                self.take(1)
                return inner
        if sign in "*+?{},^$":
            raise PatternError(f"has {sign!r} where no glob has anything like it")
        return sign

    def choice(self) -> str:
        """One character of several."""
        inside, _, self.rest = self.rest.partition("]")
        if not inside or "\\" in inside or "[" in inside or "," in inside or "{" in inside or "}" in inside:
            raise PatternError("has a set of characters that no glob says")
        return f"[!{inside[1:]}]" if inside.startswith("^") else f"[{inside}]"

    def repeated(self, atom: str) -> str:
        sign = self.rest[:1]
        if not sign or sign not in "*+?{":
            return atom
        self.take(1)
        if self.rest[:1] in ("?", "+") and self.rest:
            self.take(1)  # lazy or possessive: what matches in the end is the same for whole paths
        if sign == "?":
            return f"{{,{atom}}}"
        if atom == "?" and sign in "*+":
            return "*" if sign == "*" else "?*"
        if atom in ("[0-9]", "[a-zA-Z0-9_]") and sign in "*+":
            self.over_matches = "any characters where it says a run of some"
            return f"{atom}*" if sign == "+" else "*"
        raise PatternError(f"repeats {atom!r}, which no glob does")

    def take(self, count: int) -> str:
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken
