"""Implementations in other processes: other languages, other interpreters, and code that may not return."""
