"""What tests of the planner share."""

import pytest

from jaxckpt.solve import polish


@pytest.fixture(scope="module")
def unpolished():
    """Plans of small steps are not polished: what is done with plans does not hang on their last per cent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polish, "_OP_RUNS", 0)
        yield
