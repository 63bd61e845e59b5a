"""How much is held, and opened, to check deletes and row ids; what is beyond it is not checked, and a gap says so."""

FILES = 10_000_000
"""Data files from which deletes delete, and files of a branch whose row ids are compared; the driver holds some dozen bytes of
each."""

OVERLAPPING_FILES = 2_000
"""Data files that are opened since their ranges of row ids overlap."""
