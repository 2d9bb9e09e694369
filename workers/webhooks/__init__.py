"""Delivery of webhooks: signed, guarded, repeated."""
