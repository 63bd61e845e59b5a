"""Servers on this machine, started once for all tests of a process."""

from kit.object_server import object_server, store

__all__ = ["object_server", "store"]
