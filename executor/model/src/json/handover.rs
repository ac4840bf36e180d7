//! The JSON that a shim passes to the program that replaces it. Descriptors are in it by their numbers, which an execve
//! keeps, and bytes as text.
//!
//! Must not: know what a descriptor is for.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::io::FdFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::record;

// A shim has one thread.
thread_local! {
    static NAMED: RefCell<BTreeSet<RawFd>> = const { RefCell::new(BTreeSet::new()) };
}

/// A descriptor by its number. It stays with its owner until the execve, and is the reader's from then on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fd(RawFd);

impl Fd {
    /// Names a descriptor, which is then among those that the execve keeps open.
    pub fn of(fd: &impl AsFd) -> Fd {
        let number = fd.as_fd().as_raw_fd();
        NAMED.with_borrow_mut(|named| named.insert(number));
        Fd(number)
    }

    /// The number of the descriptor in this process.
    pub fn number(&self) -> RawFd {
        self.0
    }

    /// Takes the descriptor over, in the program that was executed. Each is taken once.
    ///
    /// # Errors
    /// `Damaged` when the number is not open.
    pub fn take(self) -> Result<OwnedFd> {
        let closed = || Error::new(Kind::Damaged, format!("descriptor {} was not handed over", self.0));
        sys::inherited_fd(self.0).ok_or_else(closed)
    }
}

/// Forgets which descriptors were named.
pub fn begin() {
    NAMED.take();
}

/// The numbers of the descriptors that were named since [`begin`].
pub fn named() -> BTreeSet<RawFd> {
    NAMED.with_borrow(Clone::clone)
}

/// Has an execve keep the named descriptors open, or close them after all: then one that is closed already needs no flag.
///
/// # Errors
/// `Internal` when one that is to be kept is not open.
pub fn keep_open(open: bool) -> Result<()> {
    let flags = if open { FdFlags::empty() } else { FdFlags::CLOEXEC };
    NAMED.with_borrow(|named| {
        named.iter().try_for_each(|number| match sys::set_fd_flags(*number, flags) {
            Err(_) if !open => Ok(()),
            set => set.doing(Kind::Internal, || format!("cannot hand over descriptor {number}")),
        })
    })
}

/// Reads a part of what was handed over, which is JSON too.
///
/// # Errors
/// `Damaged` when it is no such part.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).and_then(read_value).doing(Kind::Damaged, || "cannot read the facts")
}

/// Like [`read`], from a parsed value. All facts are read this way, whose code a shim has for its records already.
pub fn read_value<T: DeserializeOwned>(value: Value) -> serde_json::Result<T> {
    record::from_value(value)
}

/// Bytes, in JSON as an object with their hexadecimal digits: a list of numbers takes ten times the memory while it is
/// read. Such a list is read too, since version 1 of the facts has that.
pub mod bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    use super::read_value;

    /// The name of the digits: no key of a description begins with a NUL.
    const HEX: &str = "\u{0}hex";

    #[derive(Serialize)]
    struct Text {
        #[serde(rename = "\u{0}hex")]
        hex: String,
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// Whatever error the serializer returns.
    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        Text { hex: digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect() }.serialize(to)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// An error for what is neither digits nor a list.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let value = Value::deserialize(from)?;
        let bytes = match of(&value) {
            Some(bytes) => Ok(bytes),
            None => read_value(value),
        };
        bytes.map_err(serde::de::Error::custom)
    }

    /// The bytes in an object that [`serialize`] has written; `None` for any other value.
    pub fn of(value: &Value) -> Option<Vec<u8>> {
        let object = value.as_object().filter(|object| object.len() == 1)?;
        let digits = object.get(HEX)?.as_str()?.as_bytes();
        let digit = |digit: &u8| char::from(*digit).to_digit(16);
        let byte = |pair: &[u8]| match pair {
            [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
            _ => None,
        };
        digits.chunks(2).map(byte).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Piece {
        #[serde(with = "bytes")]
        text: Vec<u8>,
    }

    #[test]
    fn bytes_are_read_in_either_form() {
        let piece = Piece { text: (0..=255).collect() };
        let text = serde_json::to_string(&piece).expect("JSON");
        assert!(text.starts_with("{\"text\":{\"\\u0000hex\":\"000102"), "{text}");
        assert_eq!(read::<Piece>(text.as_bytes()), Ok(piece));
        let list = read::<Piece>(b"{\"text\":[0,255]}");
        assert_eq!(list, Ok(Piece { text: vec![0, 255] }));
        for bad in ["{\"\\u0000hex\":\"0\"}", "{\"\\u0000hex\":\"0g\"}", "{\"hex\":\"00\"}", "[256]", "7"] {
            assert!(read::<Piece>(format!("{{\"text\":{bad}}}").as_bytes()).is_err(), "{bad}");
        }
    }
}
