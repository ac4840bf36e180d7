//! `--secret`: files that the task alone reads, and variables that nothing shows.
//!
//! ```text
//!   --secret FILE[:NAME]              ─► /run/secrets/NAME
//!   --env-file FILE --secret FILE     ─► also: the variables in FILE are secret
//! ```

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bowline_executor::Secret;
use bowline_executor::secrets::{LARGEST, Secrets};
use bowline_model::{Doing as _, Error, Kind, Result};

use super::environment::{self, Variable};

/// A secret as typed: a file, and its name inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFile {
    path: PathBuf,
    name: String,
}

impl FromStr for SecretFile {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<SecretFile, String> {
        let (path, name) = match text.rsplit_once(':') {
            Some((path, name)) => (Path::new(path), Some(name)),
            None => (Path::new(text), None),
        };
        let name = name.or_else(|| path.file_name()?.to_str()).unwrap_or_default();
        if path.as_os_str().is_empty() || name.is_empty() || name.contains('/') || [".", ".."].contains(&name) {
            return Err(format!("{text:?} is not FILE[:NAME], where NAME is that of a file in /run/secrets"));
        }
        Ok(SecretFile { path: path.to_owned(), name: name.to_owned() })
    }
}

/// Reads all secrets, and takes those of `env_files` that are secret too out of that list.
///
/// # Errors
/// `NotFound` or `Usage` for a file that cannot be read, `Usage` for one that is too large or for two of one name.
pub fn read(files: &[SecretFile], env_files: &mut Vec<PathBuf>) -> Result<Secrets> {
    let mut secrets = Secrets::default();
    for SecretFile { path, name } in files {
        secrets.files.push(Secret { name: name.clone(), content: content(path)? });
    }
    let secret = |file: &PathBuf| files.iter().any(|SecretFile { path, .. }| is_same(path, file));
    let (hidden, plain): (Vec<PathBuf>, Vec<PathBuf>) = env_files.drain(..).partition(secret);
    *env_files = plain;
    let env = environment::variables(&hidden, Vec::<Variable>::new())?;
    secrets.env = env.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    secrets.check()?;
    Ok(secrets)
}

fn content(path: &Path) -> Result<Vec<u8>> {
    let what = || format!("cannot read the secret {}", path.display());
    let hinted = |error: Error| error.hint("--secret takes a file that you can read: FILE, or FILE:NAME");
    let mut content = Vec::new();
    let file = File::open(path).doing(Kind::NotFound, what).map_err(hinted)?;
    file.take(LARGEST as u64 + 1).read_to_end(&mut content).doing(Kind::Usage, what).map_err(hinted)?;
    if content.len() > LARGEST {
        let message = format!("the secret {} is larger than 1 MiB", path.display());
        return Err(Error::new(Kind::Usage, message)
            .hint("a secret is a key or a password; mount what is larger: --volume FILE:/path:ro"));
    }
    Ok(content)
}

/// Whether both paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_a_file_and_a_name() {
        let read = |text: &str| text.parse::<SecretFile>().map(|secret| (secret.path, secret.name));
        assert_eq!(read("/etc/key.pem"), Ok(("/etc/key.pem".into(), "key.pem".into())));
        assert_eq!(read("key"), Ok(("key".into(), "key".into())));
        assert_eq!(read("/dev/fd/63:token"), Ok(("/dev/fd/63".into(), "token".into())));
        for bad in ["", ":", ":a", "a:", "a:b/c", "a:..", "/", "..", "a/.."] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
