"""The exceptions of the implementations under test."""

from model.errors import EvictcheckError


class TargetError(EvictcheckError):
    """A target that cannot be named, found, loaded or started.

    The message is a sentence or two: what was wrong with the target, and what to do about it.
    """


class NoAnswerError(Exception):
    """A call that the implementation did not answer: it failed, hung or died.

    The judge takes it for a crash of the implementation. The message is a clause that says what happened: `the
    driver was killed by SIGSEGV`.
    """
