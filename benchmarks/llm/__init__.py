"""The language engine and its peers on one machine, side by side; each in a process of its own."""
