"""The one exception that a person is meant to read."""


class EvictcheckError(Exception):
    """A question that cannot be asked: bad input, or nothing to run.

    The message is a sentence or two: what was wrong, where, and what to do. The command line prints it
    and exits with 2.
    """


def in_words(error: BaseException) -> str:
    """An exception of somebody else's, as part of a sentence: `KeyError ('a')`."""
    text = str(error)
    return f"{type(error).__name__} ({text})" if text else type(error).__name__
