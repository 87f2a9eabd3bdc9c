"""What a process tells its operators: log lines, each with the id of the request it belongs to."""

import logging
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="-")

# The packages of this project; third-party libraries keep their own configuration.
_LOGGERS = ("cluster", "udtf", "actors", "serve_app")
_HANDLER_NAME = "destrier"
_FORMAT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"


class _RequestIdFilter(logging.Filter):
    """Adds the current request id to every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


def configure_logging(level: int = logging.INFO) -> None:
    """Send this project's log lines to standard error; a second call changes the level only."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if any(handler.get_name() == _HANDLER_NAME for handler in logger.handlers):
            continue
        handler = logging.StreamHandler()
        handler.set_name(_HANDLER_NAME)
        handler.setFormatter(logging.Formatter(_FORMAT))
        handler.addFilter(_RequestIdFilter())
        logger.addHandler(handler)
        logger.propagate = False
