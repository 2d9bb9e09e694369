"""What every generated answer shares: its events, its two ways out, its usage."""
