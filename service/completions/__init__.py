"""Answers of the classic completions, whole or streamed, with the prompt's own scores."""
