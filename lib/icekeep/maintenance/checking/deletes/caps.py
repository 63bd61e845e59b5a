"""How much is held to check deletes and row ids, and how many files are opened. What is more is left out, and a gap says so."""

REACHES = 10_000_000
"""Pairs of a delete file and a data file from which it deletes; 24 bytes are held of each, twice while they are sorted. Each of
several tasks holds its share of them. Of more none is checked."""

BRANCH_FILES = 10_000_000
"""Data files of a branch whose row ids are compared; 24 bytes are held of each. Of a branch with more none is checked."""

OVERLAPPING_FILES = 2_000
"""Data files that are opened since their ranges of row ids overlap; those that are more are not."""
