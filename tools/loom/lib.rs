//! The word that the threads of a soft NIC share, and the words of a packet ring, and nothing else
//! of the library: `cargo test --package roce-loom` compiles them in seconds, and tries every
//! interleaving of threads on them.
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

#[path = "."]
mod ring {
    mod ring_tests;
    #[path = "../../src/link/share/ring/words.rs"]
    mod words;
}
