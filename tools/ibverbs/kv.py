"""64 MiB of random bytes from one process into another, as servers of language models move their KV caches:

    kv.py mooncake|nixl target DIRECTORY      # waits for the bytes
    kv.py mooncake|nixl initiator DIRECTORY   # writes them into the target's memory

The two meet in DIRECTORY: the target leaves there where its memory is, and ends when the initiator says that it is done.
Each prints the SHA-256 of its memory at the end."""

import ctypes
import hashlib
import json
import mmap
import os
import pathlib
import sys
import time

SIZE = 64 << 20
SECONDS_MAX = 60


class Mooncake:
    """Mooncake's TransferEngine. Without an RDMA device it falls back to TCP, with one word in its log."""

    def __init__(self, name, address):
        from mooncake.engine import TransferEngine

        self.address = address
        self.engine = TransferEngine()
        check(self.engine.initialize("127.0.0.1:0", "P2PHANDSHAKE", "rdma", "") == 0, "initialize")
        check(self.engine.register_memory(address, SIZE) == 0, "register_memory")

    def describe(self):
        return {"segment": f"127.0.0.1:{self.engine.get_rpc_port()}", "address": self.address}

    def write(self, to):
        status = self.engine.transfer_sync_write(to["segment"], self.address, to["address"], SIZE)
        check(status == 0, f"transfer_sync_write: {status}")


class Nixl:
    """NIXL over UCX, whose wheel has a libibverbs of its own."""

    def __init__(self, name, address):
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.agent.register_memory([(address, SIZE, 0, "")], "DRAM")
        self.descriptors = self.agent.get_xfer_descs([(address, SIZE, 0)], "DRAM")

    def describe(self):
        descriptors = self.agent.get_serialized_descs(self.descriptors)
        return {"metadata": self.agent.get_agent_metadata().hex(), "descriptors": descriptors.hex()}

    def write(self, to):
        peer = self.agent.add_remote_agent(bytes.fromhex(to["metadata"]))
        descriptors = self.agent.deserialize_descs(bytes.fromhex(to["descriptors"]))
        transfer = self.agent.initialize_xfer("WRITE", self.descriptors, descriptors, peer)
        state = self.agent.transfer(transfer)
        deadline = time.monotonic() + SECONDS_MAX
        while state == "PROC" and time.monotonic() < deadline:
            state = self.agent.check_xfer_state(transfer)
        check(state == "DONE", f"transfer: {state}")
        self.agent.release_xfer_handle(transfer)


def check(holds, what):
    if not holds:
        sys.exit(f"kv.py: {what} failed")


def wait_for(file):
    deadline = time.monotonic() + SECONDS_MAX
    while not file.exists():
        check(time.monotonic() < deadline, f"waiting for {file}")
        time.sleep(0.01)
    return file.read_text()


def leave(file, text):
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def main(library, role, directory):
    ready, done = directory / "ready", directory / "done"
    memory = mmap.mmap(-1, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    end = {"mooncake": Mooncake, "nixl": Nixl}[library](role, address)
    if role == "target":
        leave(ready, json.dumps(end.describe()))
        wait_for(done)
    else:
        memory[:] = os.urandom(SIZE)
        to = json.loads(wait_for(ready))
        began = time.monotonic()
        end.write(to)
        took = time.monotonic() - began
        leave(done, "")
        print(f"{SIZE / took / 1e6:.0f} MB/s")
    print("sha256", hashlib.sha256(memory).hexdigest(), flush=True)
    # Destructors of both libraries wait for threads of theirs.
    os._exit(0)


main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]))
