//! `bowline limits` as typed.

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
        /// Only tell what would be changed
        #[arg(long)]
        dry_run: bool,
    },
    /// Lift limits, and end slices that were made for them and are empty
    Reset {
        /// The manifest whose limits they are [default: all that were applied]
        file: Option<PathBuf>,
        /// Only tell what would be changed
        #[arg(long)]
        dry_run: bool,
    },
    /// Print what is wanted beside what is in force
    Show {
        /// The manifest [default: what was applied]
        file: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Have figures of units among the metrics
    Track {
        /// The units, which the host has [default: print those that are tracked]
        #[arg(value_name = "UNIT")]
        units: Vec<UnitName>,
    },
    /// Have them there no more
    Untrack {
        /// The units
        #[arg(required = true, value_name = "UNIT")]
        units: Vec<UnitName>,
    },
}
