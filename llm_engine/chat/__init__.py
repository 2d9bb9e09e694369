"""The form of a conversation: templates on the way in, tool calls and reasoning on the way out."""
