"""One engine over several ranks: layouts, shares of weights, exchanges, step commands."""
