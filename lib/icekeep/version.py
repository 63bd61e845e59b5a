"""The release of icekeep: pyproject.toml takes it from here, and so do snapshots, results and `icekeep --version`."""

ICEKEEP_VERSION = "0.1.0"
