//! `bowline schema`: prints the JSON schema of a description.

use bowline_model::Result;

use crate::ui::json;

pub fn run(sandbox: bool) -> Result<u8> {
    let schema = if sandbox { bowline_spec::sandbox_schema() } else { bowline_spec::schema() };
    json::print_plain(&schema).map(|()| 0)
}
