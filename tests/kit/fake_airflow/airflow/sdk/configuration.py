"""The configuration of Airflow, of which variables say everything."""

import os


class _Conf:
    def getboolean(self, section: str, key: str, fallback: bool) -> bool:
        given = os.environ.get(f"AIRFLOW__{section}__{key}".upper())
        return fallback if given is None else given == "True"


conf = _Conf()
