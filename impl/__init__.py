"""The implementations under test, and the ways to reach them."""
