"""A session of Spark whose SQL begins when it is first used.

Most jobs run functions over payloads, for which Spark's core is enough. Its SQL takes the JVM two to three seconds of a
processor until it is there: thousands of classes, and a thousand settings.
"""

from threading import RLock
from typing import Any

from pyspark import SparkContext
from pyspark.errors.exceptions.captured import install_exception_handler
from pyspark.sql import SparkSession


class LateSession(SparkSession):
    """A session around a context that runs; PySpark's own constructor is called for the first attribute that only that sets.

    `options` are of its SQL, as `SparkSession.builder` takes them.
    """

    def __init__(self, context: SparkContext, options: dict[str, Any]) -> None:
        self._sc = context
        # What the JVM says is an error of PySpark's from now on, as in any session.
        install_exception_handler()
        self._late_options, self._late_lock, self._is_whole = options, RLock(), False

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is not there. `_conf` and the like are made by PySpark itself once it has looked for them.
        if name.startswith("__") or name not in _OF_WHOLE:
            raise AttributeError(name)
        with self._late_lock:
            if not self._is_whole:
                super().__init__(self._sc, options=self._late_options)
                self._is_whole = True
        return self.__dict__[name]

    def getTags(self) -> set[str]:
        """Of a session that nobody has used there are none."""
        return super().getTags() if self._is_whole else set()

    def newSession(self) -> SparkSession:
        return SparkSession(self._sc, self._jsparkSession.newSession())

    def stop(self) -> None:
        """Stop the context, and with it the session."""
        if self._is_whole:
            super().stop()
        else:
            self._sc.stop()


_OF_WHOLE = frozenset({"_jsparkSession", "_jsc", "_jvm", "_profiler_collector"})
"""What PySpark's constructor sets beside the context."""
