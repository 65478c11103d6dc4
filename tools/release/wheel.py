"""Writes the wheel of a staged tree: wheel.py TREE VERSION OUT

The command is a script, its library and pages are data: pip puts both below one prefix, where
`roce run` finds the library at ../lib/roce. Entries are sorted and dated by SOURCE_DATE_EPOCH.
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

tree, version, out = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
TAG = "py3-none-manylinux_2_28_x86_64"
DATA, INFO = f"roce-{version}.data", f"roce-{version}.dist-info"
# A zip archive knows no time before 1980.
WHEN = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]

doc = tree / "share/doc/roce"
metadata = f"""Metadata-Version: 2.4
Name: roce
Version: {version}
Summary: A RoCEv2 protocol stack in pure userspace: run verbs programs without an RNIC, analyze captures
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
License-File: LICENSES-third-party.txt
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Networking
Requires-Python: >=3.7
Description-Content-Type: text/markdown

{(doc / "README.md").read_text()}"""
wheel = f"Wheel-Version: 1.0\nGenerator: roce tools/release\nRoot-Is-Purelib: false\nTag: {TAG}\n"

entries = {f"{INFO}/METADATA": metadata.encode(), f"{INFO}/WHEEL": wheel.encode()}
for name in ("LICENSE-MIT", "LICENSE-APACHE", "LICENSES-third-party.txt"):
    entries[f"{INFO}/licenses/{name}"] = (doc / name).read_bytes()
entries[f"{INFO}/sboms/roce.cdx.json"] = (doc / f"roce-{version}.cdx.json").read_bytes()
entries[f"{DATA}/scripts/roce"] = (tree / "bin/roce").read_bytes()
for folder in ("lib/roce", "share/man", "share/bash-completion", "share/zsh", "share/fish"):
    for file in sorted((tree / folder).rglob("*")):
        if file.is_file():
            entries[f"{DATA}/data/{file.relative_to(tree)}"] = file.read_bytes()

record = f"{INFO}/RECORD"
lines = []
for name, content in sorted(entries.items()):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    lines.append(f"{name},sha256={digest},{len(content)}\n")
entries[record] = "".join([*lines, f"{record},,\n"]).encode()

with zipfile.ZipFile(out / f"roce-{version}-{TAG}.whl", "w") as archive:
    # What describes the wheel comes last, as the format recommends.
    for name, content in sorted(entries.items(), key=lambda entry: (entry[0].startswith(INFO), entry[0])):
        info = zipfile.ZipInfo(name, WHEN)
        info.compress_type = zipfile.ZIP_DEFLATED
        is_executable = "/scripts/" in name or ".so" in name
        info.external_attr = (0o100755 if is_executable else 0o100644) << 16
        archive.writestr(info, content, compresslevel=9)
