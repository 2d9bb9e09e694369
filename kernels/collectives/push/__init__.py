"""Exchanges by one kernel that writes into the memory of other devices, without a barrier."""
