"""Data that a page carries for its script."""

import json
from typing import Any


def embedded_json(data: Any) -> str:
    r"""JSON that may stand in an HTML script element.

    Example:
      >>> embedded_json("</script>")
      '"\\u003c/script\\u003e"'
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
