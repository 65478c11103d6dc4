//! Files and folders that are gone when the test is.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file that is gone when the test is.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A name that no other test uses, and no file.
    pub fn name(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(format!("roce-test-{process}-{n}-{name}")))
    }

    /// A file of these bytes.
    pub fn new(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let scratch = Self::name(name);
        std::fs::write(&scratch.0, bytes).unwrap();
        scratch
    }

    /// Returns the path as text.
    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A folder that is gone, with all in it, when the test is.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// An empty folder that no other test uses.
    pub fn new(name: &str) -> Self {
        let folder = Scratch::name(name).0.clone();
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file in it as text.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
