//! `metrics`: serves or prints the figures of all tasks, which `bowline_metrics` gathers.

use bowline_metrics::args::MetricsArgs;
use bowline_model::Result;
use bowline_model::folder::StateDir;

use crate::ui::print::say;

pub async fn run(state: &StateDir, args: MetricsArgs) -> Result<u8> {
    bowline_metrics::run(state, args, say).await
}
