"""Choices by lot that follow from a number: the same in every run, so that a test that failed can be run again."""

from random import Random  # noqa: TID251 - seeded; tests take it from here


class Choices(Random):
    """All choices of one number; any two numbers choose differently, small ones too."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
