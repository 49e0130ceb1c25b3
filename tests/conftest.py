"""Examples are random on a developer's machine, to find more, and fixed in CI, where landing must not be luck."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
