"""Errors that a user can cause: a notebook shows their message, not sixty lines of our code."""

from __future__ import annotations


class UserError(Exception):
    """An error whose message says what happened and what to type."""

    def _render_traceback_(self) -> list[str]:
        """What IPython, and so papermill, shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class BadValue(UserError, ValueError):
    """An argument that is not allowed."""


class Interrupted(UserError, KeyboardInterrupt):
    """A run that was interrupted; a notebook stops here instead of showing half of its results."""
