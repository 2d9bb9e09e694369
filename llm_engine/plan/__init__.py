"""From a model's config to the layers and op uses of its steps, before any weight is read."""
