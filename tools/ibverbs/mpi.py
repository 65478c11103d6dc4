"""What MPI programs do, everything verified: messages of all lengths, collectives, memory of others. Rank 0 prints how long a
short message takes."""

import array
import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
after, before = (rank + 1) % size, (rank - 1) % size


def bytes_of(who, length):
    return bytes((who + at) % 251 for at in range(length))


def messages():
    for length in (0, 1, 8, 100, 4096, 8192, 65536, 300_000, 1 << 20):
        received = bytearray(length)
        world.Sendrecv([bytes_of(rank, length), MPI.BYTE], after, 7, [received, MPI.BYTE], before, 7)
        assert received == bytes_of(before, length), f"{length} bytes from {before}"


def collectives():
    mine, total = array.array("q", [rank]) * 1000, array.array("q", [0]) * 1000
    world.Allreduce(mine, total)
    assert set(total) == {size * (size - 1) // 2}, total[:3]
    for root in range(size):
        shared = bytearray(bytes_of(root, 100_000) if rank == root else 100_000)
        world.Bcast([shared, MPI.BYTE], root)
        assert shared == bytes_of(root, 100_000), f"from {root}"
    assert world.alltoall([(rank, to) for to in range(size)]) == [(of, rank) for of in range(size)]


def memory():
    own = array.array("q", [0]) * 4
    window = MPI.Win.Create(own, disp_unit=8, comm=world)
    window.Fence()
    window.Put([array.array("q", [rank]), MPI.INT64_T], after, 0)
    window.Accumulate([array.array("q", [1]), MPI.INT64_T], 0, 1, op=MPI.SUM)
    window.Fence()
    seen = array.array("q", [-1])
    window.Get([seen, MPI.INT64_T], after, 0)
    window.Fence()
    assert (own[0], seen[0]) == (before, rank), (own, seen)
    assert rank != 0 or own[1] == size, own
    window.Free()


def pingpong(rounds=1000):
    message = bytearray(8)
    began = time.perf_counter()
    for turn in range(2 * rounds):
        if turn % 2 == rank:
            world.Send([message, MPI.BYTE], 1 - rank)
        else:
            world.Recv([message, MPI.BYTE], 1 - rank)
    return (time.perf_counter() - began) / rounds / 2 * 1e6


messages()
collectives()
memory()
world.Barrier()
if rank < 2 <= size:
    took = pingpong()
    if rank == 0:
        print(f"{took:.1f} us one way")
world.Barrier()
sys.stdout.flush()
