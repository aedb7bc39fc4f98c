"""Who may do what: tokens' principals and scopes, whose names are whose, and how much a token may keep."""
