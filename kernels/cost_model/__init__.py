"""How long operations and exchanges take on a machine, from its facts and stated assumptions."""
