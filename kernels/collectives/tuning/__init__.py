"""Measuring a machine's transports, keeping what was measured, and watching that it still holds."""
