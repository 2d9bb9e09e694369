"""Chat requests between gateway and language worker, over Redis Streams."""
