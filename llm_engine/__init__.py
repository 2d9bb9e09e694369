"""The language-model engine: prompt tokens in, tokens out.

Read `engine.py` first, then `scheduler.py`, `runner.py`, `models/llama.py` and `sampler/sample.py`.
"""
