"""The tools of the fault tests."""
