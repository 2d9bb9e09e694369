"""What the machine's memory holds, what the engine takes of it, and what becomes of the rest."""
