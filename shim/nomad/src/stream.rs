//! Streams of answers: what a call goes on to send until it is over, or until its client leaves.

use std::pin::Pin;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// How many items a slow reader may be behind.
const BEHIND: usize = 16;

/// A stream of what `produce` sends; it ends with that, and drops it when the client leaves.
pub fn stream_of<T: Send + 'static, F>(
    produce: impl FnOnce(Items<T>) -> F,
) -> Pin<Box<dyn Stream<Item = std::result::Result<T, Status>> + Send>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BEHIND);
    let left = sender.clone();
    let produced = produce(Items(sender));
    tokio::spawn(async move {
        tokio::select! {
            () = produced => {}
            () = left.closed() => {}
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// Where the items of a stream go.
pub struct Items<T>(mpsc::Sender<std::result::Result<T, Status>>);

impl<T> Items<T> {
    /// Sends an item; waits for a slow reader. Without a reader the producer is dropped.
    pub async fn send(&self, item: std::result::Result<T, Status>) {
        let _ = self.0.send(item).await;
    }

    /// A place for one item, which is then sent without waiting; none once the reader has gone.
    pub async fn place(&self) -> Option<mpsc::Permit<'_, std::result::Result<T, Status>>> {
        self.0.reserve().await.ok()
    }
}
