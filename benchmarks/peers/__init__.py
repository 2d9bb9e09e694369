"""What lanewise is compared with; each is imported where it is asked for, "n/a" where absent."""
