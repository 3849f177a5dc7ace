"""No false alarms: on steps that are right as they are, nothing is an error."""

import pytest

from jaxckpt import NoGradientError
from jaxckpt.linter import lint
from tests.zoo import ZOO

pytestmark = pytest.mark.usefixtures("no_local_search")

ALIKE = {"linen_gpt", "nnx_merged", "equinox_transformer"}
"""Large steps with another of their library or their blocks beside them; they take half of the time."""
UNDONATED = {"equinox_transformer", "tied_transformer", "curvature"}
"""Steps whose authors do not donate their state; that is said, and is right."""


@pytest.mark.parametrize(
    "entry", [pytest.param(e, marks=[pytest.mark.slow] if e.name in ALIKE else []) for e in ZOO], ids=str
)
def test_models_of_the_zoo_are_left_alone(entry):
    if entry.missing:
        pytest.skip(f"needs {', '.join(entry.missing)}")
    case = entry.make()
    try:
        findings = lint(
            case.step,
            *case.args,
            target="h200",
            donate_argnums=case.donate_argnums,
            static_argnums=case.static_argnums,
        )
    except NoGradientError:
        return
    assert not findings.errors
    assert findings.codes == (("donation-missing",) if entry.name in UNDONATED else ())
