"""One small module per resource; each exports `router`."""
