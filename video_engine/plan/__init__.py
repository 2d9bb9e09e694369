"""From a pipeline's configs to the op uses of its stages, before any weight is read."""
