"""LoRA adapters: read from PEFT's folders, applied to the rows of a step that ask for them."""
