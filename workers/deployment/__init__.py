"""`lanewise serve`: what it checks, starts, keeps running and stops."""
