"""The parts of the scheduler: the queue, fair shares, deadlines, step times, preemption."""
