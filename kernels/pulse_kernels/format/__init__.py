"""The coded group, as bytes: its layout, tables and constants, which every implementation shares (spec, section 5)."""
