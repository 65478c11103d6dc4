"""Compares what tests/c/cm_probe.c prints on a soft NIC with what it prints on the kernel's rxe.

    probe.py EXPECTED PRINTED

Numbers that are different in every run are left out: times, ephemeral ports, PSNs, QPNs, flow labels, pointers. What remains
different is in DIFFERENCES, each with its reason; another difference fails, and so does one that is gone."""

import difflib
import re
import sys

# What differs in every run.
NUMBERS = [
    (r"\[ *\d+\.\d+\]", "[time]"),
    (r"(\d+\.\d+\.\d+\.\d+):(?:3[2-9]|[456]\d)\d{3}\b", r"\1:port"),
    (r"src port \d+", "src port n"),
    (r"\bfl (?!0\b)[0-9a-f]+", "fl x"),
    (r"\b(rq_psn|sq_psn|rq|sq) (?!0\b)[0-9a-f]+", r"\1 x"),
    (r"\b(dest|qpn) (?!(?:0|123|456|ffffff)\b)[0-9a-f]+", r"\1 x"),
    (r"\bpd 0x[0-9a-f]{4,}", "pd pointer"),
    (r"\b(?:rxe0|roce0)\b", "device"),
]

# Reason, what rxe prints, what a soft NIC prints.
DIFFERENCES = [
    ("on Ethernet there are no LIDs; Linux tells bytes that it has not set", r"dlid 201", "dlid 0"),
    ("rxe makes queues longer than asked for", r"caps 15 15 4 2", "caps 8 8 2 2"),
    ("a soft NIC's memory is not flushed by peers of a connection", r"access 30e", "access e"),
    (
        "attributes that no transition has set yet are those of the device; rxe has zeros",
        r"^(  qp .* state \d) mtu 1 (rq_psn 0 .*) hop 0 ",
        r"\1 mtu 3 \2 hop 64 ",
    ),
    ("a NIC on a UDP socket has its address at GID index 0, rxe a link-local one", r"sgid_i 1", "sgid_i 0"),
    (
        "loopback as a destination is a NIC of the program, and can be connected to",
        r"  id lo (.*) src 127.0.0.1:port dst 127.0.0.1:7001 pkey ffff paths 0\n  call rdma_resolve_route = -1 errno 19 \(No such device\)",
        r"  id lo \1 src 10.9.0.1:port dst 10.9.0.1:7001 pkey 0 paths 0\n  call rdma_resolve_route = 0 errno 0 ()\n"
        r"  [time] C event RDMA_CM_EVENT_ROUTE_RESOLVED status 0 listen_id null conn pdlen 0 pd null rr 0 id 0 fc 0 retry 0 "
        r"rnr 0 srq 0 qpn 0",
    ),
]


def normalized(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for pattern, replacement in NUMBERS:
        text = re.sub(pattern, replacement, text)
    return text


def main():
    expected, printed = (normalized(path) for path in sys.argv[1:3])
    gone = []
    for reason, pattern, replacement in DIFFERENCES:
        expected, count = re.subn(pattern, replacement, expected, flags=re.MULTILINE)
        print(f"{count:4}  {reason}")
        if count == 0:
            gone.append(reason)
    lines = [text.splitlines() for text in (expected, printed)]
    new = list(difflib.unified_diff(*lines, "rxe, but for known differences", "soft NIC", n=1, lineterm=""))
    for line in new:
        print(line)
    calls, events = (len(re.findall(word, printed)) for word in (r"(?m)^  call ", r" event RDMA_CM_EVENT_"))
    print(f"{calls} calls and {events} events, {len(DIFFERENCES)} known differences")
    return 1 if new or gone or calls < 150 or events < 50 else 0


sys.exit(main())
