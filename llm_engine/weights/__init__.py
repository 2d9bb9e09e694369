"""Where weights come from: resolving a name, and reading safetensors or GGUF files."""
