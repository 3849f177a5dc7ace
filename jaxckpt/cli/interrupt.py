"""Ctrl-C: a sentence at once, and the end soon after it, whatever runs at the moment.

Python raises `KeyboardInterrupt` in the main thread only between two of its own instructions, and a compile of XLA is
one call that may take a minute. `signal.set_wakeup_fd` makes the signal itself write to a pipe; a thread reads it. The
thread leaves the main thread some time to end by itself, with files closed and halves of files removed, and then ends
the process. Where the main thread turns the `KeyboardInterrupt` into something else, as extensions do that are being
imported, or loses it, as destructors do, nothing of that is shown.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

EXIT_INTERRUPTED = 130
_PATIENCE_S = 0.5
_SHOW_CURSOR = "\x1b[?25h"
_SAID = threading.Lock()
_INTERRUPTED = threading.Event()


def end_on_interrupt() -> None:
    """Makes Ctrl-C end this process with 130; where interrupts are ignored, as in the background, they still are."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _until_interrupted(sys.__unraisablehook__)
    sys.excepthook = _until_interrupted(sys.__excepthook__)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reader,), daemon=True).start()


def is_interrupted() -> bool:
    """True after Ctrl-C, whatever became of the exception."""
    return _INTERRUPTED.is_set()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _INTERRUPTED.set()
    signal.default_int_handler(number, frame)


def _until_interrupted(hook: Callable[..., Any]) -> Callable[..., None]:
    def shown(*error: Any) -> None:
        if not is_interrupted():
            hook(*error)

    return shown


def _wait(reader: int) -> None:
    while os.read(reader, 1) != bytes([signal.SIGINT]):  # other signals are of the user's code
        pass
    say_interrupted()
    time.sleep(_PATIENCE_S)
    _remove_folders()
    os._exit(EXIT_INTERRUPTED)


def say_interrupted() -> None:
    """Says it once, whichever of the two threads comes first."""
    if _SAID.acquire(blocking=False):
        cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""  # the spinner had hidden it
        sys.stderr.write(f"{cursor}\nInterrupted: nothing more is done.\n")
        sys.stderr.flush()


def _remove_folders() -> None:
    """Removes the folders that XLA writes to while it compiles, and that this process would have removed."""
    import shutil
    import tempfile

    for folder in Path(tempfile.gettempdir()).glob(f"jaxckpt-{os.getpid()}-*"):
        shutil.rmtree(folder, ignore_errors=True)
