//! Tasks that are stopped together.

use std::pin::Pin;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A group of tasks. Clones share the group.
#[derive(Clone, Default)]
pub struct TaskGroup {
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

impl TaskGroup {
    /// Starts a task. It must end soon after `stop` is cancelled.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Of one type, so that the code of tasks is compiled once and not for each of them.
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        self.tasks.spawn(task);
    }

    /// Asks all tasks to stop and waits until they have ended.
    pub async fn finish(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
