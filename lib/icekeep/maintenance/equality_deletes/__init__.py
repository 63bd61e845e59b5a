"""Equality deletes become deletes of positions: a part of the job `rewrite_position_deletes`."""
