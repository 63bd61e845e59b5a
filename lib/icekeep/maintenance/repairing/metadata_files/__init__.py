"""The table's own metadata: counters that are raised, entries that go, and tables that begin again from earlier metadata."""
