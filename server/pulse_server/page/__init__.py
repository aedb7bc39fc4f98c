"""The page at `/`: its files, and how they are served."""
