"""The five stages of a render, one function each: typed in, typed out."""
