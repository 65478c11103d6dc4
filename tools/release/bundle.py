"""Packs files into the bundle that the command carries: bundle.py OUT FILE…

The form is said in src/bin/roce/run/bundle.rs.
"""

import hashlib
import pathlib
import subprocess
import sys

out, files = sys.argv[1], [pathlib.Path(name) for name in sys.argv[2:]]
contents = [file.read_bytes() for file in files]
lines = [
    f"{file.name} {len(content)} {hashlib.sha256(content).hexdigest()}\n"
    for file, content in zip(files, contents)
]
packed = subprocess.run(
    ["zstd", "-19", "--long=24", "--single-thread", "--no-check", "-c"],
    input=b"".join(contents),
    stdout=subprocess.PIPE,
    check=True,
).stdout
pathlib.Path(out).write_bytes("".join(lines).encode() + b"\n" + packed)
