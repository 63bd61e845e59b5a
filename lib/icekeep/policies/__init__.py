"""What is to be done to which tables, when and under which conditions: values and pure functions.

Nothing here reads a file, a catalog or a clock. `operations/configuration/policies.py` reads the configuration into these values.
"""
