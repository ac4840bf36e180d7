//! Reads files that somebody else may have made longer than they make sense.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// As [`read_up_to`], and when the file cannot be opened.
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_up_to(File::open(path)?, most)
}

/// Reads to the end, at most `most` bytes.
///
/// # Errors
/// `FileTooLarge` if there is more; the reader's.
pub fn read_up_to(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    // As much at once as most files are long.
    let mut bytes = Vec::with_capacity(8192);
    reader.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {} KiB", most >> 10)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_not_read_to_its_end() {
        assert_eq!(read_up_to(&[7; 2048][..], 2048).expect("it fits").len(), 2048);
        let zero = read_file(Path::new("/dev/zero"), 4096).expect_err("it has no end");
        assert_eq!((zero.kind(), zero.to_string().as_str()), (ErrorKind::FileTooLarge, "it is larger than 4 KiB"));
    }
}
