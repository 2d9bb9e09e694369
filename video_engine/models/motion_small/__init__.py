"""motion-small: a small diffusion transformer that animates a picture by generating its motion."""
