"""The search for layouts: what each phase costs under each, what fits, and what is best."""
