//! Starts, changes and stops systemd units over the system bus.
//!
//! ```text
//!   shim ─► worker ─► bowline ─► call ─► a job ─► JobRemoved ─► done, or why not
//! ```
//!
//! Only the program `bowline` contains this code; a shim runs it for one request at a time. A bus client is large, so
//! no long-running process contains one.
//!
//! Every wait has a timeout: `systemd` has them.

pub mod drop_ins;
mod host;
pub mod overrides;
mod systemd;

use bowline_executor::internal::Unit;
use bowline_executor::systemd::{Property, Request};
use bowline_executor::{Error, Kind, Result};
pub use host::answer;
use systemd::{NO_SUCH_UNIT, Refusal, Systemd, UNIT_EXISTS, plain, values};
use tokio::time::Instant;

/// How many times a slice may vanish between our look and the start of a unit in it.
const VANISHED: u32 = 10;

/// Carries out a shim's request.
///
/// # Errors
/// What the bus or systemd refuses.
pub async fn carry_out(request: Request) -> Result<()> {
    match request {
        Request::Start { unit, pid, properties } => start(&unit, pid, &properties).await,
        Request::Change { unit, properties } => change(&unit, &properties).await,
        Request::Stop { unit } => stop(&unit).await,
    }
}

/// Starts `unit` with `pid` in it, and waits for systemd to finish.
///
/// # Errors
/// `AlreadyExists` when the unit exists, unless it has failed and can be reset; `Unsupported` without a bus;
/// `Unavailable` on a timeout; `BadSpec` for what systemd refuses. After an error nothing of the unit is left.
async fn start(unit: &Unit, pid: u32, properties: &[Property]) -> Result<()> {
    let started = async {
        let systemd = Systemd::connect().await?;
        let properties = systemd.known(properties).await?;
        let mut signals = systemd.subscribe().await?;
        let mut forgets_by = None;
        let mut vanished = 0;
        loop {
            // Name only missing slices: systemd accepts all of them or none, and leaves half a unit behind if it
            // refuses.
            let mut slices = Vec::new();
            for slice in unit.own_slices() {
                if !systemd.knows(&slice).await? {
                    slices.push(slice);
                }
            }
            match systemd.start_unit(unit, pid, &properties, &slices).await {
                Ok(job) => {
                    let done = systemd.finished(&mut signals, job).await;
                    if done.is_err() {
                        // The start may still succeed later.
                        let _ = systemd.call("StopUnit", &(&unit.name, "replace")).await;
                    }
                    return done;
                }
                Err(Refusal::Named(name, text)) if name == UNIT_EXISTS => {
                    // This is our unit: systemd started it without answering the call.
                    if systemd.has_in(&unit.name, pid).await {
                        return Ok(());
                    }
                    let is_first = forgets_by.is_none();
                    let by = *forgets_by.get_or_insert_with(Systemd::forgets_by);
                    let is_taken = match systemd.state(&unit.name).await?.as_deref() {
                        Some("failed" | "inactive" | "deactivating") => by <= Instant::now(),
                        Some(_) => true,
                        // It has gone since, or there is a file of this name.
                        None => !is_first,
                    };
                    if is_taken {
                        return Err(Error::new(Kind::AlreadyExists, format!("{name}: {}", plain(&text))).hint(
                            "another task has this name, or an earlier run left it behind: `systemctl stop` it",
                        ));
                    }
                    // The name belongs to a failed unit, or to one that is just ending.
                    if systemd.call("ResetFailedUnit", &(&unit.name,)).await.is_ok() {
                        systemd.forgotten(&mut signals, &unit.name, by).await;
                    }
                }
                // A slice that existed is gone, because its last unit has ended since.
                Err(Refusal::Named(name, _)) if name == NO_SUCH_UNIT && vanished < VANISHED => vanished += 1,
                Err(refusal) => return Err(refusal.into()),
            }
        }
    };
    started.await.map_err(|e| e.within(format_args!("cannot start {}", unit.name)))
}

/// Changes properties of a unit until it ends, and waits until systemd has written its files.
async fn change(unit: &Unit, properties: &[Property]) -> Result<()> {
    let done = async {
        let systemd = Systemd::connect().await?;
        let properties = systemd.known(properties).await?;
        let (for_good, changes): (Vec<_>, Vec<_>) = properties.into_iter().partition(|property| property.is_for_good());
        for property in for_good.iter().filter(|_| !unit.is_slice()) {
            host::check_scope(&systemd, unit, property).await?;
        }
        if !changes.is_empty() {
            systemd.call("SetUnitProperties", &(&unit.name, true, values(&changes))).await?;
            // systemd writes the files after its answer, and before it reads another call.
            systemd.knows(&unit.name).await?;
        }
        Ok(())
    };
    done.await.map_err(|e: Error| e.within(format_args!("cannot change {}", unit.name)))
}

/// Stops a unit whose processes have ended, and waits until it is gone. A unit that is already gone is fine.
async fn stop(unit: &Unit) -> Result<()> {
    let done = async {
        let systemd = Systemd::connect().await?;
        let mut signals = systemd.subscribe().await?;
        let job = match systemd.call("StopUnit", &(&unit.name, "replace")).await {
            Ok(answer) => answer.job()?,
            Err(Refusal::Named(name, _)) if name == NO_SUCH_UNIT => {
                host::end_implicit_slices(&systemd, &mut signals, unit).await;
                return Ok(());
            }
            Err(refusal) => return Err(refusal.into()),
        };
        systemd.finished(&mut signals, job).await?;
        host::end_implicit_slices(&systemd, &mut signals, unit).await;
        Ok(())
    };
    done.await.map_err(|e: Error| e.within(format_args!("cannot stop {}", unit.name)))
}
