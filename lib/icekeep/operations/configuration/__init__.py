"""The configuration file and what it means: catalogs, policies and their layers, where runs are written down, who is told."""
