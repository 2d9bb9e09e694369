"""The pool of threads: shared, changed in size, quiet when idle."""

import threading
import time

import pytest
import torch

from kernels.native.build import find_compiler
from kernels.native.library import Pool, library, pool
from kernels.ops.packed_gemm.native import multiply
from kernels.ops.packed_gemm.quantised import PackedMatrix
from kernels.ops.packed_gemm.reference import random_matrix

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def problem() -> tuple[torch.Tensor, PackedMatrix, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    matrix = PackedMatrix(random_matrix(96, 64, generator, minima="yes"), None, pool(1))
    x_MK = torch.randn(40, 64, generator=generator)
    return x_MK, matrix, multiply(x_MK, matrix, pool(1))


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_the_number_of_threads_changes_no_bit(problem, num_threads: int) -> None:
    x_MK, matrix, expected = problem
    threads = Pool(library(), num_threads)
    for _ in range(20):
        assert torch.equal(multiply(x_MK, matrix, threads), expected)


def test_pools_and_callers_may_be_several(problem) -> None:
    x_MK, matrix, expected = problem
    shared, own = pool(2), Pool(library(), 2)
    wrong: list[int] = []

    def call(threads: Pool) -> None:
        for i in range(50):
            if not torch.equal(multiply(x_MK, matrix, threads), expected):
                wrong.append(i)

    callers = [threading.Thread(target=call, args=(p,)) for p in (shared, shared, own)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert not any(caller.is_alive() for caller in callers)
    assert wrong == []


def test_an_idle_pool_takes_no_time(problem) -> None:
    x_MK, matrix, expected = problem
    threads = Pool(library(), 4)
    multiply(x_MK, matrix, threads)
    time.sleep(0.1)
    before_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before_s < 0.1
    assert torch.equal(multiply(x_MK, matrix, threads), expected)
