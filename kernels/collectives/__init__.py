"""Communication between ranks: one communicator, its contracts, and the forms that carry it out.

Every exchange keeps one of three contracts. `exact` (the default) adds in the order of the ranks
in float32 and rounds once, so that a result depends neither on the run, nor on the rank, nor on
how a message is cut. `fast` is whatever the library does. `int8` moves blocks of 128 values with
their scale and is never taken unasked.
"""
