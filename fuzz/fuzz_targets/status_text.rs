#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| roce_fuzz::status_text(input));
