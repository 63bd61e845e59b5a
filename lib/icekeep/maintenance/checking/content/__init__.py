"""Check, level 4: what data files hold, held against what metadata says of them.

Entries of one file, from all manifests that have it, meet by the hash of its path, so that each file is read once:
`job` chooses where, `meeting` brings entries together, `reading` reads a file, the others look at its batches.
"""
