"""Pull: route -> fetch -> decode -> verify -> apply."""
