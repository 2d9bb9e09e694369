"""`lanewise doctor` and `lanewise plan`: what would run, and why."""
