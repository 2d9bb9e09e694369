"""Two ranks that race collectives over memory, loopback and slow links."""
