"""Rows of lost data files, from the older files that they were written of."""
