"""The demo with engines needs three environments: `make test-engines` names the other two."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "PULSE_ENGINES_PYTHON" in os.environ else ["test_*.py"]
