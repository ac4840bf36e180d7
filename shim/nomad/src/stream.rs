//! Streams of answers: what a call goes on to send until it is over, its client leaves, or the plugin ends.

use std::pin::Pin;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::shutdown::Shutdown;

/// How many items a slow reader may be behind.
const BEHIND: usize = 16;

pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A stream of what `produce` sends, with its error as the last item; drops it when the client leaves.
pub fn stream_of<T: Send + 'static, F>(produce: impl FnOnce(Items<T>) -> F) -> Answers<T>
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BEHIND);
    let own = sender.clone();
    let produced = produce(Items(sender));
    tokio::spawn(async move {
        tokio::select! {
            result = produced => if let Err(status) = result {
                let _ = own.send(Err(status)).await;
            },
            () = own.closed() => {}
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// Like [`stream_of`], for what could go on for ever: it ends when the plugin does.
pub fn lasting<T: Send + 'static, F>(shutdown: &Shutdown, produce: impl FnOnce(Items<T>) -> F) -> Answers<T>
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let shutdown = shutdown.clone();
    stream_of(|items| {
        let produced = produce(items);
        async move { shutdown.unless_begun(produced).await }
    })
}

/// Where the items of a stream go.
pub struct Items<T>(mpsc::Sender<Result<T, Status>>);

impl<T> Items<T> {
    /// Sends an item; waits for a slow reader. Without a reader the producer is dropped.
    pub async fn send(&self, item: Result<T, Status>) {
        let _ = self.0.send(item).await;
    }

    /// A place for one item, which is then sent without waiting; none once the reader has gone.
    pub async fn place(&self) -> Option<mpsc::Permit<'_, Result<T, Status>>> {
        self.0.reserve().await.ok()
    }
}
