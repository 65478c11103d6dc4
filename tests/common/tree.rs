//! The source tree as text, for tests of the source itself.

use std::fs;
use std::path::Path;

/// The root of the package.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The files under a folder with one of these extensions (`""` is none), in order: path from the
/// root, and text.
pub(crate) fn files_under(folder: &str, extensions: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    collect(&Path::new(ROOT).join(folder), extensions, &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, extensions: &[&str], found: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(folder).expect("the folder is part of the source");
    for path in entries.map(|entry| entry.expect("it can be read").path()) {
        if path.is_dir() {
            collect(&path, extensions, found);
        } else if extensions.iter().any(|known| path.extension().unwrap_or_default() == *known) {
            let name = path.strip_prefix(ROOT).expect("it is under the root");
            let name = name.to_str().expect("names are ASCII").to_owned();
            found.push((name, fs::read_to_string(&path).expect("it is text")));
        }
    }
}
