"""Schedules as data: computation and communication on streams, and what carries them out.

One `Schedule` is run by threads over a communicator, by a device's streams, and by a simulator in
virtual time: what is simulated is what runs.
"""
