"""Push: diff -> code -> upload -> commit."""
