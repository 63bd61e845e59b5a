"""A sensor that looks once."""

from typing import Any

from airflow.sdk import BaseOperator


class PokeReturnValue:
    """What a look has found."""

    def __init__(self, is_done: bool, xcom_value: Any = None) -> None:
        self.is_done, self.xcom_value = is_done, xcom_value

    def __bool__(self) -> bool:
        return self.is_done


class BaseSensorOperator(BaseOperator):
    """Keeps what it is deferred with in `deferred`."""

    def __init__(
        self, *, mode: str = "poke", poke_interval: float = 60, timeout: float = 600, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.mode, self.poke_interval, self.timeout = mode, poke_interval, timeout
        self.deferred: list[Any] = []

    def execute(self, context: Any) -> Any:
        return self.poke(context).xcom_value  # type: ignore[attr-defined]

    def resume_execution(self, method: str, kwargs: Any, context: Any) -> Any:
        return getattr(self, method)(context, **(kwargs or {}))

    def defer(self, *, trigger: Any, method_name: str, kwargs: Any) -> None:
        self.deferred.append([trigger.delta, method_name, kwargs])
