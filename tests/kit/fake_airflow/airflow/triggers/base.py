"""What a triggerer runs."""

import logging
from typing import Any


class BaseTrigger:
    """Has a log."""

    def __init__(self) -> None:
        self.log = logging.getLogger("trigger")


class TriggerEvent:
    """What a trigger has to say."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload
