//! The call that has a shim execute another program in its place, which every shim serves.

use std::path::PathBuf;
use std::rc::Rc;

use bowline_executor::internal::facts::WantedUpgrade;
use bowline_executor::{Executor, VERSION};

use crate::calls::{Answer, Call, begin_and_wait, wait_for};
use crate::wire::proto::bowline::{UpgradeRequest, UpgradeResponse};
use crate::wire::to_status;

/// An upgrade that was begun.
struct Upgrading {
    executor: Executor,
    number: u64,
}

impl Upgrading {
    async fn ended(&self) -> Answer<UpgradeResponse> {
        self.executor.upgraded(self.number).await.map_err(|e| to_status(&e))?;
        Ok(UpgradeResponse { version: VERSION.to_owned(), ..UpgradeResponse::default() })
    }
}

async fn begin(executor: &Executor, request: UpgradeRequest) -> Answer<(u64, Upgrading)> {
    let wanted = WantedUpgrade { program: PathBuf::from(request.program), dry_run: request.dry_run };
    let number = executor.begin_upgrade(wanted).map_err(|e| to_status(&e))?;
    Ok((number, Upgrading { executor: executor.clone(), number }))
}

/// Begins the call.
///
/// # Errors
/// As [`begin_and_wait`].
pub fn upgrade(executor: &Executor, payload: &[u8]) -> Answer<Call> {
    begin_and_wait(&Rc::new(executor.clone()), payload, begin, Upgrading::ended)
}

/// Waits for the end of the upgrade with this number, which the program before this one has begun.
pub fn wait_for_upgrade(executor: &Executor, number: u64) -> Call {
    wait_for(Upgrading { executor: executor.clone(), number }, Upgrading::ended)
}
