"""Building blocks of the models: norms, rotary embedding, linear maps, paged attention."""
