"""From what a caller sends to a job with every choice made."""
