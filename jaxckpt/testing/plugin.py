"""The pytest plugin: two options, one fixture, a few lines at the end of the run.

pytest finds it by the entry point of the installed package. It imports neither jax nor any room of ours until a test
asks for the fixture, so that it costs other test suites nothing.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxckpt.testing.check import SnapshotCheck

PROPERTY = "jaxckpt_snapshot"
"""The name under which sentences travel with reports of tests: from workers of pytest-xdist, and into JUnit's XML."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds our options."""
    group = parser.getgroup("jaxckpt", "what steps take of a device's memory (jaxckpt)")
    group.addoption("--jaxckpt-update", action="store_true", help="accept footprints as they are now")
    group.addoption(
        "--jaxckpt-strict", action="store_true", help="fail where a snapshot is missing; so it is where CI is set"
    )


@pytest.fixture
def jaxckpt_snapshot(request: pytest.FixtureRequest) -> "SnapshotCheck":
    """Keeps what a step takes of a device's memory, and fails where a change costs more; see `SnapshotCheck`.

    Example:
      >>> def test_memory(jaxckpt_snapshot):
      ...     jaxckpt_snapshot(train_step, state, batch, target="h200", donate_argnums=0, tolerance=0.02)
    """
    from jaxckpt.testing.check import SnapshotCheck

    def say(sentence: str) -> None:
        request.node.user_properties.append((PROPERTY, sentence))

    # Not the node's id: pytest-xdist adds its group to that.
    classes = [node.name for node in request.node.listchain() if isinstance(node, pytest.Class)]
    return SnapshotCheck(
        module=request.path, test="::".join((*classes, request.node.name)), mode=_mode(request.config), say=say
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what was written, and what takes less than its snapshot."""
    sentences = dict.fromkeys(_sentences(terminalreporter))
    if sentences:
        terminalreporter.section("footprints")
        for sentence in sentences:
            terminalreporter.line(sentence)


def _sentences(terminalreporter: Any) -> Iterator[str]:
    for reports in terminalreporter.stats.values():
        for report in reports:
            yield from (text for name, text in getattr(report, "user_properties", ()) if name == PROPERTY)


def _mode(config: pytest.Config) -> Any:
    from jaxckpt.testing.check import WriteMode

    if config.getoption("jaxckpt_update"):
        return WriteMode.UPDATE
    on_ci = os.environ.get("CI", "").lower() not in ("", "0", "false", "no")
    return WriteMode.STRICT if on_ci or config.getoption("jaxckpt_strict") else WriteMode.WRITE
