"""Structured logs: one JSON object a line on standard error, or coloured text for a person at a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(*, service: str, level: str = "info") -> None:
    """Set up logging for this process. ``service`` is bound to every line."""
    terminal = sys.stderr.isatty()
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if terminal:
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)


def get(**bound: Any) -> Any:
    """A logger with ``bound`` on every line (``shard``, ``run``, ``attempt``)."""
    return structlog.get_logger().bind(**bound)
