"""Guessing tokens ahead, so that one step computes several; the answer stays what it would be.

A draft is fixed before the step. Each position has its own uniform number, so the token that would
be drawn there without drafts is known once its logits are: the draft is kept while it equals that
token. The tokens are the same with drafts and without, greedy or drawn, and so is their
distribution. `rejection` holds the rule for drafters that draw their guesses at random.

Source: Leviathan et al. 2022, arXiv:2211.17192; Saxena 2023, "Prompt lookup decoding".
"""
