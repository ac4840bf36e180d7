#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bowline::fuzzing::read("options", data));
