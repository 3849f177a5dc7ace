"""Lines of logs without decoration, and the sizes that XLA prints in them.

`clean_lines` removes time stamps, colours, quote marks and file names around XLA's own text. A size counts only if all
of the size is in the text: "1234 by" at the end of a file may have lost digits.
"""

import re
from collections.abc import Iterator

SIZE = r"(?<![\d.])-?\d{1,20}(?:\.\d{1,9})?\s?(?:bytes|[KMGTP]iB|[KMGTP]|B)(?![A-Za-z0-9])"
"""A size as XLA prints one: "1234 bytes", "6.00MiB" (GPU), "15.48G" (TPU, the same units)."""

_PARTS = re.compile(r"(-?\d+(?:\.\d+)?)\s?(bytes|[KMGTP]iB|[KMGTP]|B)")
_EXPONENT = {"b": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\n]*\x07|\x1b[@-_]")
_LOGGED = re.compile(r"^.*?\.(?:cc|h|cpp|py):\d+\] ?")
_QUOTED = re.compile(r"^(?:>[ \t]?)+")
_ESCAPED = re.compile(
    r"\\n(?=(?:\\n|\\t|\s)*(?:BufferAssignment|Peak buffers|Buffer \d|Size:|Operator:|XLA [Ll]abel:|Shape:"
    r"|Entry Parameter|=====|Total |Output size|Program |Largest|Unpadded|Extra memory|Allocation type"
    r"|Stats:|Limit:|InUse:|reserved|program|arguments|global|HLO temp|\d+\. Size|[a-z_ ]+ allocation:))"
)


def clean_lines(text: str) -> list[str]:
    r"""The lines of a log without decoration around XLA's text.

    Line ends may be of any kind, also written as backslash and n. The last line has no "\n" where the text ends in it.

    Example:
      >>> clean_lines("2025-05-13 09:18:55: W xla/bfc_allocator.cc:501] Stats: \r\nLimit: 7")
      ['Stats: \n', 'Limit: 7']
    """
    return [_LOGGED.sub("", _QUOTED.sub("", line)) for line in _split(_ANSI.sub("", text))]


def bytes_of(size: str) -> int | None:
    """Bytes of a printed size, None where it is none.

    Example:
      >>> bytes_of("6.00MiB"), bytes_of("15.48G") == int(15.48 * 2**30), bytes_of("unknown size")
      (6291456, True, None)
    """
    match = _PARTS.fullmatch(size.strip())
    if match is None:
        return None
    unit = 1024 ** _EXPONENT["b" if match[2] in ("bytes", "B") else match[2][0]]
    return int(match[1]) * unit if "." not in match[1] else int(float(match[1]) * unit)


def leading_size(text: str) -> int | None:
    """Bytes of the size that a text begins with; None where it begins with none."""
    match = re.match(SIZE, text)
    return bytes_of(match[0]) if match else None


def _split(text: str) -> Iterator[str]:
    for line in re.findall(r"[^\n]*\n|[^\n]+", text.replace("\r\n", "\n").replace("\r", "\n")):
        if _ESCAPED.search(line) is None:
            yield line
            continue
        *first, last = _ESCAPED.split(line)
        unescaped = [each.replace("\\t", "\t").replace('\\"', '"') for each in (*first, last)]
        yield from (f"{each}\n" for each in unescaped[:-1])
        yield unescaped[-1]
