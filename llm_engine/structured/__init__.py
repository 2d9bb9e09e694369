"""Answers bound to a form: JSON, a schema, a regular expression, a choice, a grammar."""
