"""Files of plans: what `--plan-out` writes and `apply` reads (`docs/plans.md`)."""
