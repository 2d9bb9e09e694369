"""One module per schema version; published ones never change."""
