"""What all tests of the shell share."""

import pytest


@pytest.fixture(autouse=True)
def width_of_no_terminal(monkeypatch):
    """Tables are as wide as their content, whatever COLUMNS the shell, or another test, has exported."""
    monkeypatch.delenv("COLUMNS", raising=False)
