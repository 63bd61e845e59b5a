"""Servers on this machine, started once for all tests of a process."""

from kit.object_store import object_server, store

__all__ = ["object_server", "store"]
