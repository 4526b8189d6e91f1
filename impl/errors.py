"""The exception of the implementations under test."""

from model.errors import EvictcheckError


class TargetError(EvictcheckError):
    """A target that cannot be named, found, loaded or started.

    The message is a sentence or two: what was wrong with the target, and what to do about it.
    """
