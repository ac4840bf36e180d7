//! Finds the program inside the root: as given, else in the folders that a description names, else by PATH.
//!
//! A file that exists but may not be executed is never made executable. PATH passes over it as a shell does; in the
//! folders that were named it is refused, because the task has brought it to run it.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bowline_error::{Error, Kind, Result};
use bowline_sys::Image;
use oci_spec::runtime::Process;
use rustix::fs::{self, FileType};

use super::environment;
use crate::view::service::PIDS;

/// Checks that the working directory is a folder, as far as possible before rights are given up, so that the error
/// comes before the task is started.
///
/// # Errors
/// `BadSpec` when it is not a folder.
pub fn check_folder(process: &Process) -> Result<()> {
    let cwd = process.cwd();
    match std::fs::metadata(cwd) {
        Ok(found) if !found.is_dir() => {
            Err(Error::new(Kind::BadSpec, format!("{} is not a folder", cwd.display())).in_field("workdir"))
        }
        _ => Ok(()),
    }
}

/// Finds the process's program in the root that the caller is in: a bare name in `first`, then in the folders of PATH.
///
/// # Errors
/// `CommandNotFound` and `NotExecutable` name the path or paths looked at.
pub fn find(process: &Process, first: &[PathBuf]) -> Result<Image> {
    let args = process.args().as_deref().unwrap_or_default();
    let env = environment::of(process)?;
    let Some(name) = args.first() else {
        return Err(Error::new(Kind::BadSpec, "empty").in_field("command"));
    };
    let path = if name.contains('/') {
        let path = process.cwd().join(name);
        match examine(&path) {
            Found::Program => path,
            Found::Nothing => {
                return Err(Error::new(
                    Kind::CommandNotFound,
                    format!("cannot run {name}: {}: no such file or directory in the root filesystem", path.display()),
                ));
            }
            found => return Err(not_executable(name, &path, &found)),
        }
    } else {
        match among(name, first)? {
            Some(path) => path,
            None => search(name, environment::value(&env, "PATH").unwrap_or_default())?,
        }
    };
    image(&path, args, &env)
}

/// The program of the same name that comes after `closed` in PATH: what the process's user may not execute is passed
/// over there, as in a shell.
pub fn find_after(process: &Process, closed: &CStr) -> Option<Image> {
    let args = process.args().as_deref().unwrap_or_default();
    let name = args.first().filter(|name| !name.contains('/'))?;
    let env = environment::of(process).ok()?;
    let mut candidates = candidates(name, environment::value(&env, "PATH").unwrap_or_default());
    candidates.find(|path| path.as_os_str().as_bytes() == closed.to_bytes())?;
    let path = candidates.find(|path| matches!(examine(path), Found::Program))?;
    image(&path, args, &env).ok()
}

/// `program` with the variables of a service manager too, which name the caller by its pid; `None` where there are none.
pub fn served(program: &Image, service: &[String]) -> Option<Image> {
    if service.is_empty() {
        return None;
    }
    let pid = rustix::process::getpid().as_raw_pid();
    let variable = |variable: &String| match variable.split_once('=') {
        Some((name, _)) if PIDS.contains(&name) => CString::new(format!("{name}={pid}")),
        _ => CString::new(variable.as_str()),
    };
    let added: Vec<CString> = service.iter().filter_map(|said| variable(said).ok()).collect();
    let name = |variable: &CStr| variable.to_bytes().split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
    let is_added = |variable: &CStr| added.iter().any(|added| name(added) == name(variable));
    let kept = program.envp().iter().filter(|variable| !is_added(variable)).cloned();
    let envp = kept.chain(added.iter().cloned()).collect();
    Some(Image::new(program.path().to_owned(), program.argv().to_vec(), envp))
}

fn image(path: &Path, args: &[String], env: &[String]) -> Result<Image> {
    let c_strings = |texts: &[String]| texts.iter().map(|text| c_string(text.as_bytes())).collect::<Result<Vec<_>>>();
    Ok(Image::new(c_string(path.as_os_str().as_bytes())?, c_strings(args)?, c_strings(env)?))
}

/// The paths at which PATH looks for `name`.
fn candidates(name: &str, path: &str) -> impl Iterator<Item = PathBuf> {
    path.split(':').filter(|folder| folder.starts_with('/')).map(move |folder| Path::new(folder).join(name))
}

/// Finds `name` in `folders`. What is no file there, such as `/etc`, is passed over.
fn among(name: &str, folders: &[PathBuf]) -> Result<Option<PathBuf>> {
    for candidate in folders.iter().map(|folder| folder.join(name)) {
        match examine(&candidate) {
            Found::Program => return Ok(Some(candidate)),
            Found::File => return Err(not_executable(name, &candidate, &Found::File)),
            Found::Folder | Found::Other | Found::Nothing => {}
        }
    }
    Ok(None)
}

fn search(name: &str, path: &str) -> Result<PathBuf> {
    let mut refused = None;
    for candidate in candidates(name, path) {
        match examine(&candidate) {
            Found::Program => return Ok(candidate),
            Found::Nothing => {}
            found => {
                refused.get_or_insert(not_executable(name, &candidate, &found));
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        Error::new(
            Kind::CommandNotFound,
            format!("cannot run {name}: executable file not found in PATH ({path}) in the root filesystem"),
        )
    }))
}

enum Found {
    Program,
    /// A file that nobody may execute.
    File,
    Folder,
    Other,
    Nothing,
}

fn examine(path: &Path) -> Found {
    match fs::stat(path) {
        Err(_) => Found::Nothing,
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_mode & 0o111 != 0 => Found::Program,
            FileType::RegularFile => Found::File,
            FileType::Directory => Found::Folder,
            _ => Found::Other,
        },
    }
}

fn not_executable(name: &str, path: &Path, found: &Found) -> Error {
    let why = match found {
        Found::Folder => "it is a folder",
        Found::Other => "it is not a file",
        Found::Program | Found::File | Found::Nothing => "it is not executable",
    };
    Error::new(Kind::NotExecutable, format!("cannot run {name}: {}: permission denied: {why}", path.display()))
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::new(Kind::BadSpec, "command, args and env must not contain NUL"))
}
