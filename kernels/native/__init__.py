"""C++ kernels for CPUs: built once on the machine that runs them, called through ctypes."""
