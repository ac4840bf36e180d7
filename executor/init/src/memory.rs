//! What the compiler and the core library call without naming it: there is no C library to have it.
//!
//! Byte by byte, and volatile, or the compiler would make each a call of itself. A few bytes at the start go this way.

#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, length: usize) -> *mut c_void {
    for index in 0..length {
        // SAFETY: the caller gives `length` bytes on both sides.
        let byte = unsafe { from.cast::<u8>().add(index) };
        // SAFETY: as above.
        let byte = unsafe { byte.read_volatile() };
        // SAFETY: as above.
        let place = unsafe { to.cast::<u8>().add(index) };
        // SAFETY: as above.
        unsafe { place.write_volatile(byte) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, length: usize) -> *mut c_void {
    for index in 0..length {
        // SAFETY: the caller gives room for `length` bytes.
        let place = unsafe { to.cast::<u8>().add(index) };
        // SAFETY: as above.
        unsafe { place.write_volatile(byte as u8) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    let mut length = 0;
    loop {
        // SAFETY: the text ends with a NUL, which was not met yet.
        let place = unsafe { text.add(length) };
        // SAFETY: as above.
        if unsafe { place.read_volatile() } == 0 {
            return length;
        }
        length += 1;
    }
}

/// Nothing unwinds, as a panic ends the process; the core library refers to it all the same.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
