//! The word that the threads of a soft NIC share, and nothing else of the library: `cargo test
//! --package roce-loom` compiles it in seconds, and tries every interleaving of threads on it.
#![cfg(test)]
#![allow(dead_code, unreachable_pub, reason = "the library uses the rest")]

#[path = "../../src/time.rs"]
mod time;

#[path = "."]
mod nic {
    #[path = "."]
    mod driver {
        mod tests;
        #[path = "../../src/nic/driver/word.rs"]
        mod word;
    }
}
