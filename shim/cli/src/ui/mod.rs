//! What a person sees and types while a command runs.

pub mod colour;
pub mod detach;
pub mod findings;
pub mod json;
pub mod live_view;
pub mod notify;
pub mod numbers;
pub mod order;
pub mod outcome;
pub mod pages;
pub mod plot;
pub mod print;
pub mod progress;
pub mod reader;
pub mod record;
pub mod report_file;
pub mod screen;
pub mod session;
pub mod signals;
pub mod streams;
pub mod table;
pub mod template;
pub mod terminal;
pub mod words;
