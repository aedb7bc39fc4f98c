"""The HTTP service over the library: any number of replicas over one bucket, where all truth is.

`pulse serve` runs it; ``create_app(Settings.read(root=...))`` is the application by itself.
"""

from pulse_server.app import create_app
from pulse_server.settings import Settings

__all__ = ["Settings", "create_app"]
