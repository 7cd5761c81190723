"""The rules, without I/O: no clock, no randomness, no logger, no driver.

Time and random numbers come in as arguments; results are values. Everything here is tested by tables.
"""
