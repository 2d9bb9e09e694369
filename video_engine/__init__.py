"""Picture and prompt in, frames out."""
