"""Jobs, queue, processes: what stands between the gateway and the engines."""
