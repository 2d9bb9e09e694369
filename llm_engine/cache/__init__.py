"""The cache of keys and values: groups, pages, prefix reuse, and the host tier below."""
