"""Time, which does not pass."""

from datetime import timedelta


class TimeDeltaTrigger:
    """Keeps how long it would wait."""

    def __init__(self, delta: timedelta) -> None:
        self.delta = delta
