"""Predicted against measured: steps of small layers on two ranks of this machine."""
