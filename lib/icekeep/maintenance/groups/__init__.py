"""What rewrites groups of files: how large files are and how many come of a group, groups side by side, and their commits."""
