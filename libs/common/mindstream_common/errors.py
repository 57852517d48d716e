"""Every error that MindStream raises on purpose.

    MindStreamError
    ├── UserError          something that the person at the keyboard can put right
    │   ├── ConfigError    a run's file, a flag or an environment variable
    │   └── InputError     a path, a file or a folder that was given
    ├── Transient          try the same thing again later (a server is away, a stream is full)
    ├── Poison             this event can never succeed: dead letter now
    └── Fenced             another process owns what this one was about to write

Anything else that is raised inside a stage is retried, then dead-lettered with its traceback.
"""

from __future__ import annotations


class MindStreamError(Exception):
    """Root of the tree."""


class UserError(MindStreamError, ValueError):
    """A mistake that a person can put right; the message says what was found, where, and what to do."""


class ConfigError(UserError):
    """A run's file, a flag or an environment variable is wrong."""


class InputError(UserError):
    """A path, file or folder that was given cannot be used."""


class Transient(MindStreamError):
    """Not now: the same work may succeed later. Never counted as an attempt."""


class Poison(MindStreamError):
    """Never: the event goes to the dead letters at once."""


class Fenced(MindStreamError):
    """Another process has taken over what this one was writing to."""
