"""A run beside others: that it is alive, the snapshot that it holds, and what runs that died have left."""
