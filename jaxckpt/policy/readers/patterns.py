"""Patterns on paths of modules: regular expressions, as mindformers takes them, as globs where that is possible.

A path such as `feed_forward.w1.activation.silu` leads from a layer through its modules to a module or to an operator
of one. Dots of the path become "/"; an operator at the end becomes a primitive of JAX, because JAX has no scopes for
operators. Repetitions of more than one character, references and look-arounds cannot be expressed by globs.
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
    """Globs on scopes and primitives for a pattern, and what they match that the pattern does not, or ""."""

    scope: str | None
    primitive: str | None
    over_matches: str = ""


class PatternError(ValueError):
    """A pattern that no glob can express."""


def target_of_pattern(pattern: str) -> PatternTarget:
    r"""The globs for a regular expression on full paths below a layer.

    Raises:
      PatternError: The text is no regular expression, or no glob can express it.

    Example:
      >>> target_of_pattern(r"feed_forward\.mul")
      PatternTarget(scope='*/feed_forward', primitive='mul', over_matches='')
      >>> target_of_pattern(r"(attention|attn)\.w[qkv]").scope
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
    """The modules of a path and the operator at its end, each as a glob or None."""
    modules, _, last = glob.rpartition("/")
    if last in PRIMITIVES and "{" not in modules:
        return (f"*/{modules}" if modules else None), PRIMITIVES[last]
    return f"*/{glob}", None


_ESCAPED = {".": "/", "d": "[0-9]", "w": "[a-zA-Z0-9_]", "-": "-", "_": "_", "/": "/"}
_CHARACTERS = ("?", _ESCAPED["d"], _ESCAPED["w"])
"""Globs of one character of many, whose repetition is "*"."""


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
        if not inside or any(sign in inside for sign in "\\[,{}"):
            raise PatternError("has a set of characters that no glob says")
        return f"[!{inside[1:]}]" if inside.startswith("^") else f"[{inside}]"

    def repeated(self, atom: str) -> str:
        """An atom with the repetition that follows it."""
        if not self.rest.startswith(("*", "+", "?", "{")):
            return atom
        sign = self.take(1)
        if self.rest.startswith(("?", "+")):
            self.take(1)  # lazy or possessive: the match of a full path is the same
        if sign == "?":
            return f"{{,{atom}}}"
        if atom in _CHARACTERS and sign in "*+":
            if atom != "?":
                self.over_matches = "any characters where the pattern has a run of some"
            return "*" if sign == "*" else f"{atom}*"
        raise PatternError(f"repeats {atom!r}, which no glob does")

    def take(self, count: int) -> str:
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken
