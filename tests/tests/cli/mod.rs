//! The command line itself: flags, help, names, tables, screens.

mod flags;
mod help;
mod inspect;
mod many;
mod names;
mod progress;
mod ps;
mod report_file;
mod several;
mod stats;
mod volumes;
mod watch;
