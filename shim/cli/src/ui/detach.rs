//! Detach keys: the key sequence that leaves a task's terminal and lets the task run on.
//!
//! Pure: typed bytes go in, the bytes for the task come out.

use std::fmt;
use std::str::FromStr;

/// A sequence of detach keys, one byte each. Empty: detaching is switched off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

/// The default sequence, the same as Docker's.
pub const DEFAULT: &str = "ctrl-p,ctrl-q";

impl DetachKeys {
    /// Keys that nobody can type.
    pub const NONE: DetachKeys = DetachKeys(Vec::new());
}

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<DetachKeys, String> {
        if text.is_empty() {
            return Ok(DetachKeys::NONE);
        }
        text.split(',').map(key).collect::<Result<_, _>>().map(DetachKeys)
    }
}

fn key(text: &str) -> Result<u8, String> {
    let wrong =
        || format!("{text:?} is no key; write a character or ctrl- and a letter, separated by commas: {DEFAULT}");
    let one = |text: &str| match text.as_bytes() {
        [byte] if byte.is_ascii_graphic() => Some(*byte),
        _ => None,
    };
    let Some(name) = text.strip_prefix("ctrl-") else {
        return one(text).ok_or_else(wrong);
    };
    // A control character is one of the characters from @ to _ without its upper bits.
    one(name)
        .map(|byte| byte.to_ascii_uppercase())
        .filter(|byte| (b'@'..=b'_').contains(byte))
        .map_or_else(|| Err(wrong()), |byte| Ok(byte & 0x1f))
}

impl fmt::Display for DetachKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|byte| match byte {
            0..0x20 => format!("ctrl-{}", char::from(byte | 0x40).to_ascii_lowercase()),
            _ => char::from(*byte).to_string(),
        });
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

/// How much of the detach sequence has been typed so far.
#[derive(Debug)]
pub struct Typing {
    keys: Vec<u8>,
    held: usize,
}

impl Typing {
    pub fn new(keys: &DetachKeys) -> Typing {
        Typing { keys: keys.0.clone(), held: 0 }
    }

    /// Appends to `out` the bytes of `typed` that go to the task, and returns true once the sequence is complete. Bytes
    /// that may be the start of the sequence are held back.
    pub fn pass(&mut self, typed: &[u8], out: &mut Vec<u8>) -> bool {
        if self.keys.is_empty() {
            out.extend_from_slice(typed);
            return false;
        }
        for &byte in typed {
            let mut candidate = self.keys[..self.held].to_vec();
            candidate.push(byte);
            // Hold back the longest suffix that may still become the sequence.
            let begin = (0..candidate.len()).find(|&begin| self.keys.starts_with(&candidate[begin..]));
            let begin = begin.unwrap_or(candidate.len());
            out.extend_from_slice(&candidate[..begin]);
            self.held = candidate.len() - begin;
            if self.held == self.keys.len() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn passed(keys: &str, typed: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut typing = Typing::new(&keys.parse().unwrap());
        let mut out = Vec::new();
        let left = typed.iter().any(|bytes| typing.pass(bytes, &mut out));
        (out, left)
    }

    #[test]
    fn the_sequence_leaves_and_is_not_passed_on() {
        assert_eq!(passed(DEFAULT, &[b"ls\r\x10\x11"]), (b"ls\r".to_vec(), true));
        assert_eq!(passed(DEFAULT, &[b"a\x10", b"\x11b"]), (b"a".to_vec(), true));
        assert_eq!(passed("ctrl-],x", &[b"\x1dx"]), (Vec::new(), true));
    }

    #[test]
    fn what_only_begins_like_it_is_passed_on_whole() {
        assert_eq!(passed(DEFAULT, &[b"\x10", b"\x10", b"x"]), (b"\x10\x10x".to_vec(), false));
        assert_eq!(passed(DEFAULT, &[b"\x10\x10\x11"]), (b"\x10".to_vec(), true));
        assert_eq!(passed("a,a,b", &[b"aaab"]), (b"a".to_vec(), true));
        assert_eq!(passed(DEFAULT, &[b"\x11\x10"]), (b"\x11".to_vec(), false), "the rest is held");
    }

    #[test]
    fn without_keys_everything_is_passed_on() {
        assert_eq!(passed("", &[b"\x10\x11"]), (b"\x10\x11".to_vec(), false));
    }

    #[test]
    fn keys_are_read_and_written_alike() {
        for text in [DEFAULT, "ctrl-@,ctrl-[,ctrl-_", "q", ""] {
            assert_eq!(text.parse::<DetachKeys>().unwrap().to_string(), text);
        }
        for text in ["ctrl-", "ctrl-1", "alt-x", "ctrl-p,", "ctrl-pq", "é", " "] {
            assert!(text.parse::<DetachKeys>().is_err(), "{text:?}");
        }
    }
}
