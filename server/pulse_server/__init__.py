"""The HTTP service over the library: read-only, stateless, all truth in the bucket.

uvicorn --factory mymodule:app        # where app() returns create_app("/srv/policies")
"""

from pulse_server.app import create_app

__all__ = ["create_app"]
