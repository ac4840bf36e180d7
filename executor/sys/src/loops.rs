//! Loop devices, which make a block device of a file: loop(4).

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use libc::c_long;

use super::check;

/// The device cannot be written (this flag and the next two: `LO_FLAGS_*`, linux/loop.h).
pub const LOOP_READ_ONLY: u32 = 1;
/// The device lets go of its file once nobody has it open and it is not mounted.
pub const LOOP_AUTOCLEAR: u32 = 4;
/// The file is read and written without the page cache.
pub const LOOP_DIRECT_IO: u32 = 16;

/// The number of a free loop device; `control` is `/dev/loop-control`. Somebody else may take it meanwhile.
pub fn free_loop(control: BorrowedFd<'_>) -> io::Result<u32> {
    const LOOP_CTL_GET_FREE: u32 = 0x4c82;
    // SAFETY: LOOP_CTL_GET_FREE takes no argument.
    let rc = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    check(c_long::from(rc)).map(|number| number as u32)
}

/// Gives the loop device `device` the file `file`. `name` is what is shown of the file; it may be cut off.
///
/// # Errors
/// `EBUSY` when the device has a file already.
pub fn configure_loop(device: BorrowedFd<'_>, file: BorrowedFd<'_>, name: &[u8], flags: u32) -> io::Result<()> {
    const LOOP_CONFIGURE: u32 = 0x4c0a;

    /// `struct loop_info64`.
    #[repr(C)]
    struct Info {
        numbers: [u64; 5],
        number_and_encryption: [u32; 3],
        flags: u32,
        file_name: [u8; 64],
        crypt_name: [u8; 64],
        key: [u8; 32],
        init: [u64; 2],
    }
    /// `struct loop_config`.
    #[repr(C)]
    struct Config {
        file: u32,
        block_size: u32,
        info: Info,
        reserved: [u64; 8],
    }
    let mut file_name = [0; 64];
    // The last byte stays NUL.
    file_name.iter_mut().take(63).zip(name).for_each(|(to, byte)| *to = *byte);
    let (crypt_name, key, init) = ([0; 64], [0; 32], [0; 2]);
    let info = Info { numbers: [0; 5], number_and_encryption: [0; 3], flags, file_name, crypt_name, key, init };
    let config = Config { file: file.as_raw_fd().cast_unsigned(), block_size: 0, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads a loop_config, which `config` is.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    check(c_long::from(rc)).map(drop)
}
