//! Secrets of a task: files in memory that only its user reads, and variables that no record shows.
//!
//! ```text
//!   Launch ─► Secrets ─ lay_on ─► the configuration: one more mount, more variables
//!                     └ files ──► init writes them into the mount (`view/rootfs/secret_files.rs`), which then is read-only
//! ```
//!
//! Nothing of them is in a description, so neither records nor `inspect` nor events have them.

use std::fmt;

use bowline_error::{Error, Kind, Result};
use bowline_spec::Task;
use oci_spec::runtime::{Mount, Spec};
use rustix::param::page_size;

use crate::oci::host;
use crate::view::namespaces::Namespaces;
use crate::view::rootfs::{SECRETS, Secret};

/// The most bytes of one secret.
pub const LARGEST: usize = 1 << 20;

/// The most bytes of all secrets of a task together.
const MOST: usize = 2 << 20;

/// Linux 6.4 keeps a tmpfs out of swap when asked.
const NOSWAP: (u32, u32) = (6, 4);

/// What only a task may read.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Files that the task finds in [`SECRETS`].
    pub files: Vec<Secret>,
    /// Environment variables, as `KEY=value`. One of the same name in the description wins.
    pub env: Vec<String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} files, {} variables)", self.files.len(), self.env.len())
    }
}

impl Secrets {
    /// Checks names and sizes.
    ///
    /// # Errors
    /// `Usage` naming the secret.
    pub fn check(&self) -> Result<()> {
        let refused = |name: &str, why: &str| Err(Error::new(Kind::Usage, format!("secret {name:?}: {why}")));
        for (index, Secret { name, content }) in self.files.iter().enumerate() {
            if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > 255 {
                return refused(name, "its name inside must be that of a file, without a slash");
            }
            if self.files[..index].iter().any(|earlier| earlier.name == *name) {
                return refused(name, "there are two of this name");
            }
            if content.len() > LARGEST {
                return refused(name, &format!("is larger than {LARGEST} bytes"));
            }
        }
        let all: usize = self.files.iter().map(|secret| secret.content.len()).sum();
        let env: usize = self.env.iter().map(String::len).sum();
        if all + env > MOST {
            let message = format!("the secrets of the task are larger than {MOST} bytes together");
            return Err(Error::new(Kind::Usage, message));
        }
        Ok(())
    }

    /// Refuses a mount of `task` that the folder for the files would cover.
    ///
    /// # Errors
    /// `BadSpec` naming the mount.
    pub fn fit(&self, task: &Task) -> Result<()> {
        let mut mounts = task.mounts.iter().filter(|_| !self.files.is_empty());
        match mounts.position(|mount| mount.destination.starts_with(SECRETS)) {
            None => Ok(()),
            Some(index) => {
                let field = format!("mounts[{index}].destination");
                Err(Error::new(Kind::BadSpec, format!("the task's secrets are mounted at {SECRETS}")).in_field(field))
            }
        }
    }

    /// Adds to `spec` the folder for the files, on top of all other mounts, and the variables.
    ///
    /// # Errors
    /// What [`Secrets::check`] finds.
    pub fn lay_on(&self, spec: &mut Spec) -> Result<()> {
        self.check()?;
        if !self.files.is_empty() {
            let mount = self.mount(Namespaces::of(spec)?.in_user_namespace());
            spec.mounts_mut().get_or_insert_default().push(mount);
        }
        if let Some(process) = spec.process_mut() {
            let said = process.env().clone().unwrap_or_default();
            let key = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
            let is_said = |variable: &&String| said.iter().any(|other| key(other) == key(variable));
            let mut env: Vec<String> = self.env.iter().filter(|variable| !is_said(variable)).cloned().collect();
            env.extend(said);
            process.set_env(Some(env));
        }
        Ok(())
    }

    fn mount(&self, in_user_namespace: bool) -> Mount {
        let page = page_size();
        let size: usize = self.files.iter().map(|secret| secret.content.len().next_multiple_of(page)).sum();
        let mut options = ["ro", "nosuid", "nodev", "noexec", "mode=0755"].map(str::to_owned).to_vec();
        options.push(format!("size={}", size.max(page)));
        if host::kernel() >= NOSWAP && !in_user_namespace {
            options.push("noswap".to_owned());
        }
        let mut mount = Mount::default();
        mount.set_destination(SECRETS.into()).set_typ(Some("tmpfs".to_owned()));
        mount.set_source(Some("secrets".into())).set_options(Some(options));
        mount
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(files: &[(&str, usize)]) -> Secrets {
        let file = |(name, length): &(&str, usize)| Secret { name: (*name).to_owned(), content: vec![b'x'; *length] };
        Secrets { files: files.iter().map(file).collect(), env: Vec::new() }
    }

    #[test]
    fn a_mount_that_the_files_would_cover_is_refused() {
        let fits = |files: &[(&str, usize)], destination: &str| {
            let mount = bowline_spec::Mount { destination: destination.into(), ..Default::default() };
            secrets(files).fit(&Task { mounts: vec![mount], ..Task::default() })
        };
        for destination in ["/run/secrets", "/run/secrets/a"] {
            let error = fits(&[("key", 1)], destination).expect_err(destination);
            assert!(error.to_string().starts_with("mounts[0].destination: "), "{error}");
            assert_eq!(fits(&[], destination), Ok(()));
        }
        for destination in ["/run", "/run/secrets-of-mine"] {
            assert_eq!(fits(&[("key", 1)], destination), Ok(()));
        }
    }

    #[test]
    fn a_secret_has_a_plain_name_of_its_own_and_at_most_a_mebibyte() {
        assert_eq!(secrets(&[("a", LARGEST), ("b.pem", 0)]).check(), Ok(()));
        for (files, why) in [
            (&[("", 1)][..], "without a slash"),
            (&[("a/b", 1)], "without a slash"),
            (&[("..", 1)], "without a slash"),
            (&[("a", 1), ("a", 1)], "two of this name"),
            (&[("a", LARGEST + 1)], "larger"),
            (&[("a", LARGEST), ("b", LARGEST), ("c", 1)], "together"),
        ] {
            let error = secrets(files).check().expect_err(why);
            assert!(error.kind() == Kind::Usage && error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn what_a_description_says_of_a_variable_wins() {
        let mut spec = Spec::default();
        let mut process = oci_spec::runtime::Process::default();
        process.set_env(Some(vec!["A=1".to_owned()]));
        spec.set_process(Some(process));
        let secrets = Secrets { files: Vec::new(), env: vec!["A=2".to_owned(), "B=3".to_owned()] };
        secrets.lay_on(&mut spec).expect("laid on");
        let env = spec.process().as_ref().and_then(|process| process.env().clone());
        assert_eq!(env.expect("variables"), ["B=3", "A=1"]);
        assert_eq!(format!("{secrets:?}"), "Secrets(0 files, 2 variables)");
    }
}
