"""Chat events as OpenAI answers, whole or streamed."""
