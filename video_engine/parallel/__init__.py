"""One clip over several ranks: the branches of guidance and the tokens of a step, divided."""
