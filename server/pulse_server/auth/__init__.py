"""Authorization: principals and scopes of tokens, the names that are theirs, and how much a token may keep."""
