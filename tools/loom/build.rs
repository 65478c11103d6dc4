//! Sets `loom` for this crate alone, so that its dependencies are those of every build.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
