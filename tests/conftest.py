"""Settings that all tests share."""

from __future__ import annotations

import os

import hypothesis

# A slow shared machine is no failure: the time a test may take is the run's limit, not hypothesis' deadline.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("sweep", deadline=None, print_blob=True, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
