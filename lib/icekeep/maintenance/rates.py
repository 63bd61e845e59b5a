"""What work on metadata and on names of files takes, as docs/performance.md has it measured; milliseconds of a core."""

ENTRY_CPU_MS = 0.02
"""Of a job on metadata, for each entry that it reads: 150 to 220 s for ten million."""

FILE_CPU_MS = 0.02
"""Of expiration and orphan removal, for each file: 190 s for ten million."""
