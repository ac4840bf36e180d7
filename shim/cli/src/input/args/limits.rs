//! The arguments of `bowline limits`.

use std::path::PathBuf;

use bowline_spec::host_limits::UnitName;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct LimitsArgs {
    #[command(subcommand)]
    pub command: LimitsCommand,
}

#[derive(Debug, Subcommand)]
pub enum LimitsCommand {
    /// Put the limits of a manifest into effect: slices all or none, services each by itself
    Apply {
        /// The manifest, which is JSON; - for stdin
        file: PathBuf,
        /// Only print what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Give units back what their own files say, and end slices that were made for limits and are empty
    Reset {
        /// The manifest whose limits they are [default: all that were applied]
        file: Option<PathBuf>,
        /// Only print what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the wanted limits beside those in force
    Show {
        /// The manifest [default: what was applied]
        file: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Add units to the metrics, also after a reboot
    Track {
        /// The units, which must exist [default: print the tracked units]
        #[arg(value_name = "UNIT")]
        units: Vec<UnitName>,
    },
    /// Remove units from the metrics
    Untrack {
        /// The units
        #[arg(required = true, value_name = "UNIT")]
        units: Vec<UnitName>,
    },
}
