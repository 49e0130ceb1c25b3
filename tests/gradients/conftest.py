"""Here gradients are timed, as they are for users."""

from collections.abc import Iterator

import pytest

from sordino.gradients import tape, tuning

_seconds = tape._seconds


@pytest.fixture(autouse=True, scope="package")
def gradients_with_timing(gradients_without_timing: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "_PATIENCE", 20.0)
        patch.setattr(tape, "_seconds", _seconds)
        yield
