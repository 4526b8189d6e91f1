"""The one exception that a person is meant to read."""


class EvictcheckError(Exception):
    """A question that cannot be asked: bad input, or nothing to run.

    The message is a sentence or two: what was wrong, where, and what to do. The command line prints it
    and exits with 2.
    """
