"""The configuration file, its layers and what they say of catalogs, policies and runs."""
