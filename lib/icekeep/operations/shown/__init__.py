"""Results as people read them, where tables of the values alone would not do."""
