"""What becomes of logits: tokens, their text, and the events of every open request."""
