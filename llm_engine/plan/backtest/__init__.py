"""Published figures of other systems, predicted from stated inputs: fits, predictions, misses."""
