"""Bodies of requests and answers, one module per resource."""
