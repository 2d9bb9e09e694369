"""Pure tensor functions, the choice among their implementations, and facts about the hardware."""

__version__ = "0.1.0"
