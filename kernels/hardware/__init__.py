"""Facts about devices, machines and vendors: what they have, never what to do with it."""
