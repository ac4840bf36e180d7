//! Reads files that somebody else may have made longer than they make sense.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// As [`read_up_to`], and when the file cannot be opened.
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_up_to(File::open(path)?, most)
}

/// Like [`read_file`], for a process that must not wait: opening a FIFO waits for who writes to it.
///
/// # Errors
/// As [`read_file`]; `InvalidInput` for what is no regular file.
pub fn read_regular_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    read_of_length(&file, about.len(), most)
}

/// Reads a file to the end, at most `most` bytes: by one call where it has the `length` that it was found to have, which
/// the kernel's own files have not.
///
/// # Errors
/// As [`read_up_to`].
pub fn read_of_length(mut file: &File, length: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length.min(most)).unwrap_or(0) + 1];
    let begun = file.read(&mut bytes)?;
    bytes.truncate(begun);
    if begun as u64 == length && (1..=most).contains(&length) {
        return Ok(bytes);
    }
    read_up_to(bytes.as_slice().chain(file), most)
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

/// Removes a file. One that is not there is fine, also on a disk that is read-only, which unlink(2) says first.
///
/// # Errors
/// Why a file that is there cannot be removed.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    let is_there = || !path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem && !is_there() => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_not_read_to_its_end() {
        assert_eq!(read_up_to(&[7; 2048][..], 2048).expect("it fits").len(), 2048);
        let zero = read_file(Path::new("/dev/zero"), 4096).expect_err("it has no end");
        assert_eq!((zero.kind(), zero.to_string().as_str()), (ErrorKind::FileTooLarge, "it is larger than 4 KiB"));
        let (itself, own) = (Path::new("/proc/self/exe"), Path::new("/proc/self/status"));
        let length = File::open(itself).and_then(|file| file.metadata()).expect("this program").len();
        for known in [length, length - 1, length + 1, 0] {
            let file = File::open(itself).expect("this program");
            assert_eq!(read_of_length(&file, known, length).expect("it fits").len() as u64, length, "{known}");
        }
        let long = read_regular_file(itself, length - 1).expect_err("too long");
        assert_eq!(long.kind(), ErrorKind::FileTooLarge);
        assert!(!read_regular_file(own, 1 << 20).expect("the kernel says 0").is_empty());
        for odd in ["/dev/zero", "/"] {
            let error = read_regular_file(Path::new(odd), 4096).expect_err(odd);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{odd}");
        }
    }
}
