"""The commands beside the jobs: what each does, and its result."""
