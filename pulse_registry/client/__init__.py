"""The client of the service: a run behind ``https://``, with the same API as one in a bucket."""
