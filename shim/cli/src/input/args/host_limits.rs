//! The arguments of `bowline limits`.

use std::path::PathBuf;

use bowline_spec::host_limits::UnitName;
use clap::{Args, Subcommand};

use crate::input::examples;

#[derive(Debug, Args)]
pub struct LimitsArgs {
    #[command(subcommand)]
    pub command: LimitsCommand,
}

#[derive(Debug, Subcommand)]
pub enum LimitsCommand {
    /// Put the limits of a manifest into effect: slices all or none, services each by itself
    #[command(after_help = examples::LIMITS_APPLY)]
    Apply {
        /// The manifest, which is JSON; - for stdin
        file: PathBuf,
        /// Only print what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Give units back what their own files say, and end slices that were made for limits and are empty
    #[command(after_help = examples::LIMITS_RESET)]
    Reset {
        /// The manifest whose limits they are [default: all that were applied]
        file: Option<PathBuf>,
        /// Only print what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the wanted limits beside those in force
    #[command(after_help = examples::LIMITS_SHOW)]
    Show {
        /// The manifest [default: what was applied]
        file: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Add units to the metrics, also after a reboot
    #[command(after_help = examples::LIMITS_TRACK)]
    Track {
        /// The units, which must exist [default: print the tracked units]
        #[arg(value_name = "UNIT")]
        units: Vec<UnitName>,
    },
    /// Remove units from the metrics
    #[command(after_help = examples::LIMITS_UNTRACK)]
    Untrack {
        /// The units
        #[arg(required = true, value_name = "UNIT")]
        units: Vec<UnitName>,
    },
}
