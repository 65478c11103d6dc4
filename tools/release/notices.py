"""Writes the SBOM and the license texts of all dependencies.

    notices.py --sbom FILE --licenses FILE

Both name every crate that `cargo metadata` resolves for the released target with all features. In
the SBOM (CycloneDX 1.5), crates that are only needed to build or to test have the scope `excluded`.
A crate without a license text of its own gets the texts of this repository for MIT and Apache-2.0;
any other is an error.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = "x86_64-unknown-linux-gnu"
TEXTS = re.compile(r"^(un)?licen[cs]e|^copying|^copyright|^notice", re.IGNORECASE)
OWN_TEXTS = {"MIT": "LICENSE-MIT", "Apache-2.0": "LICENSE-APACHE"}


def metadata():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--all-features"]
    command += ["--filter-platform", TARGET]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def shipped(graph):
    """Returns the ids of the packages whose code is in the released files."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in graph["packages"]}
    todo = [id for id in graph["workspace_members"] if names[id] in ("roce", "roce-ibverbs", "roce-c")]
    found = set()
    while todo:
        id = todo.pop()
        if id not in found:
            found.add(id)
            for dependency in nodes[id]["deps"]:
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    todo.append(dependency["pkg"])
    return found


def texts(package):
    """Returns the license texts of a package, each with its name."""
    folder = pathlib.Path(package["manifest_path"]).parent
    found = [file for file in sorted(folder.iterdir()) if file.is_file() and TEXTS.match(file.name)]
    if found:
        return [(file.name, file.read_text(errors="replace").strip()) for file in found]
    own = [name for name in OWN_TEXTS if name in (package["license"] or "")]
    if not own:
        sys.exit(f"{package['name']} {package['version']} has no license text: {package['license']}")
    return [(f"{name}, as in this repository", (ROOT / OWN_TEXTS[name]).read_text().strip()) for name in own]


def component(package, is_shipped):
    """Returns the entry of a package in the SBOM."""
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    made = {"type": "library", "bom-ref": purl, "name": package["name"], "version": package["version"]}
    made["scope"] = "required" if is_shipped else "excluded"
    if package["license"]:
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    made["purl"] = purl
    return made


def sbom(graph, packages, root):
    in_release = shipped(graph)
    by_id = {package["id"]: component(package, package["id"] in in_release) for package in packages}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
    dependencies = []
    for node in graph["resolve"]["nodes"]:
        on = sorted(by_id[dependency["pkg"]]["bom-ref"] for dependency in node["deps"])
        dependencies.append({"ref": by_id[node["id"]]["bom-ref"], "dependsOn": on})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": when, "component": {**by_id[root["id"]], "type": "application"}},
        "components": [by_id[package["id"]] for package in packages if package["id"] != root["id"]],
        "dependencies": sorted(dependencies, key=lambda entry: entry["ref"]),
    }


def licenses(packages):
    """Returns every license text once, below the names of its crates."""
    crates = {}
    for package in packages:
        for text in texts(package):
            crates.setdefault(text[1], []).append((package, text[0]))
    parts = ["Licenses of the crates that roce is built from.\n"]
    for text, users in sorted(crates.items(), key=lambda entry: entry[1][0][0]["name"]):
        names = [f"{package['name']} {package['version']} ({package['license']}; {file})" for package, file in users]
        parts.append("\n".join(["=" * 100, *sorted(set(names)), "-" * 100, text, ""]))
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sbom", required=True, type=pathlib.Path)
    parser.add_argument("--licenses", required=True, type=pathlib.Path)
    args = parser.parse_args()
    graph = metadata()
    packages = sorted(graph["packages"], key=lambda package: (package["name"], package["version"]))
    root = next(package for package in packages if package["name"] == "roce" and package["source"] is None)
    args.sbom.write_text(json.dumps(sbom(graph, packages, root), indent=1) + "\n")
    args.licenses.write_text(licenses(packages))


main()
