"""Connections, of which there is none."""

from typing import Any


class BaseHook:
    """Knows the connections."""

    @staticmethod
    def get_connection(conn_id: str) -> Any:
        raise KeyError(conn_id)
