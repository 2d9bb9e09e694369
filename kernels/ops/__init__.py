"""One folder an op: the public function, its reference, its kernels, its spec."""
