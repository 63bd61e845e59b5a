"""Stands for pure-sasl where a test says so: Kerberos needs a realm, and this shows only what is asked of it."""
