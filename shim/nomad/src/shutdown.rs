//! The end of the plugin, which its host asks for: calls that could go on for ever end then, and the others are answered.

use tokio::sync::watch;
use tonic::Status;

/// The host's request to end, to make and to wait for.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<bool>);

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown(watch::Sender::new(false))
    }
}

impl Shutdown {
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Returns once the plugin's shutdown has begun.
    pub async fn begun(&self) {
        // The sender is ours: it does not go while we wait.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }

    /// The result of a call that may last as long as a task, unless the plugin ends before.
    ///
    /// # Errors
    /// `Unavailable`, by which the agent knows that it must ask the next process of the plugin.
    pub async fn unless_begun<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::select! {
            biased;
            result = call => result,
            () = self.begun() => Err(Status::unavailable("the plugin ends, as its host asks")),
        }
    }
}
