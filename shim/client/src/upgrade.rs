//! Has a shim execute another program in its own place, which goes on with its tasks.
//!
//! ```text
//!   shim answers ─► asked to upgrade ─► the answer; or, once it no longer answers other calls either, an error
//! ```
//!
//! An upgrade takes as long as the shim is busy and the new program reads what the shim knows. Nobody waits for a shim
//! that is stopped.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use bowline_executor::internal::open_sealed;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::{Empty, UpgradeRequest};
use bowline_protocol::wire::proto::bowline_ttrpc::BowlineClient;
use bowline_protocol::wire::{from_status, is_unknown_call};
use rustix::fs::OFlags;
use tokio::time::{sleep, timeout};

use crate::connection::{connect_at, patient};
use crate::patience::{ANSWERS_WITHIN, POLLS_OF_AN_UPGRADE};
use crate::shim::{AGAIN, Shim};

impl Shim {
    /// Replaces the shim's program by the one at `program`, which goes on with the task; or only asks it whether it
    /// could. Returns its version; the inner error is that of a shim that went before it had answered.
    ///
    /// # Errors
    /// Why the shim runs on as it was; `Unsupported` when it is too old for this, `Unavailable` when it stops answering:
    /// it may be upgraded once it goes on.
    pub async fn upgrade(&self, program: &Path, dry_run: bool) -> Result<Result<String>> {
        prepare(program)?;
        // A stopped shim would be upgraded when it goes on, whatever the caller has done instead. Any other error is that
        // of the upgrade too.
        if let Err(error) = self.version().await
            && error.kind() == Kind::Unavailable
        {
            return Err(error);
        }
        let request = request(program, dry_run);
        let answer = tokio::select! {
            biased;
            answer = self.client.upgrade(patient(), &request) => answer,
            error = self.silence_of(POLLS_OF_AN_UPGRADE) => return Err(error),
        };
        match answer {
            Ok(answer) => Ok(Ok(answer.version)),
            Err(error) if is_unknown_call(&error) => {
                let how = format!("let task {0} end or stop it, and start it again: `bowline stop {0}`", self.id);
                Err(too_old(how))
            }
            Err(error) => match self.failed(&error).await {
                broken if from_status(&error).is_none() && broken.kind() != Kind::Unavailable => Ok(Err(broken)),
                refused => Err(refused),
            },
        }
    }
}

/// Replaces the program of the shim at `socket` by the one at `program`, which goes on with its tasks; or only asks it
/// whether it could. Returns its version.
///
/// # Errors
/// Why the shim runs on as it was; `NotFound` when nobody listens there, `Unsupported` when the shim is too old for this,
/// `Unavailable` when it stops answering: it may be upgraded once it goes on.
pub async fn upgrade_at(socket: &Path, program: &Path, dry_run: bool) -> Result<String> {
    prepare(program)?;
    let at = socket.display();
    let client = match connect_at(socket).await {
        // The socket's backlog is full: the shim accepts nobody.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Err(silent_at(socket)),
        connected => connected.doing(Kind::NotFound, || format!("no shim listens at {at}"))?,
    };
    answers_at(&client, socket).await?;
    let request = request(program, dry_run);
    let answer = tokio::select! {
        biased;
        answer = client.upgrade(patient(), &request) => answer,
        error = silence_at(&client, socket) => return Err(error),
    };
    answer.map(|answer| answer.version).map_err(|error| {
        if is_unknown_call(&error) {
            return too_old("let its containers end or restart them, as their manager has it: `kubectl rollout restart`, `docker restart`");
        }
        let broken = || {
            Error::new(Kind::Unavailable, format!("the shim at {at} was killed or broke off before it had answered"))
                .hint("`ctr -n NAMESPACE tasks ls` lists the containers that run; containerd cleans up after a shim that died")
        };
        from_status(&error).unwrap_or_else(broken)
    })
}

/// Checks that `program` is a file that can be executed, and copies it where a shim runs from: once, not by each shim.
///
/// # Errors
/// `NotExecutable` for what no user may execute and for what is no regular file, such as a FIFO, which nobody waits for.
fn prepare(program: &Path) -> Result<()> {
    let at = program.display();
    let file =
        File::options().read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed()).open(program);
    let meta = file.and_then(|file| file.metadata()).doing(Kind::Internal, || format!("cannot open {at}"))?;
    let refused = |why: &str| Err(Error::new(Kind::NotExecutable, format!("{at} cannot be executed: {why}")));
    if !meta.is_file() {
        return refused("it is not a regular file");
    }
    if meta.mode() & 0o111 == 0 {
        return refused("no user may execute it");
    }
    open_sealed(program).map(drop)
}

fn request(program: &Path, dry_run: bool) -> UpgradeRequest {
    UpgradeRequest { program: program.to_string_lossy().into_owned(), dry_run, ..UpgradeRequest::default() }
}

/// The error of an upgrade for a shim of before there were upgrades. `how` says how its tasks get a new one.
fn too_old(how: impl Into<String>) -> Error {
    let message = "it is of a bowline that is too old to be upgraded while tasks run";
    Error::new(Kind::Unsupported, message).hint(how.into())
}

/// Returns an error once the shim at `socket` stops answering.
async fn silence_at(client: &BowlineClient, socket: &Path) -> Error {
    loop {
        sleep(AGAIN).await;
        if let Err(silent) = answers_at(client, socket).await {
            return silent;
        }
    }
}

/// Checks that the shim at `socket` answers; containerd's shims refuse this call, which has no effect.
async fn answers_at(client: &BowlineClient, socket: &Path) -> Result<()> {
    let request = Empty::default();
    match timeout(ANSWERS_WITHIN, client.version(patient(), &request)).await {
        // Also on an error: a broken connection fails the upgrade itself.
        Ok(_) => Ok(()),
        Err(_) => Err(silent_at(socket)),
    }
}

/// The error for a shim that is known by its socket alone and does not answer.
fn silent_at(socket: &Path) -> Error {
    Error::new(Kind::Unavailable, format!("the shim at {} is not answering", socket.display()))
        .hint("somebody may have stopped or frozen it")
}
