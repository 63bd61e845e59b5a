"""Faults of the metadata file, 101 to 199: what its JSON says against the spec, and against the metadata files before it.

`document.py` has the check itself; `reading.py` takes the JSON apart; the rest is by subject. `beside.py` looks at the files
that the metadata log names, `earlier.py` for metadata that the table could be put back to.
"""
