//! Where this host has the pages that hints name.
//!
//! A hint names a page as `docs/NAME.md`, its place in the source. Must not: change a hint whose page is not installed.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Where `make install` and packages put pages, beside the folder of the programs.
const INSTALLED: &str = "share/doc/bowline/docs";
const IN_SOURCE: &str = "docs/";

/// The hint with its pages where they are installed.
pub fn placed(hint: &str) -> Cow<'_, str> {
    match installed().filter(|_| hint.contains(IN_SOURCE)) {
        Some(folder) => in_folder(hint, &folder).into(),
        None => hint.into(),
    }
}

fn installed() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join(INSTALLED))
}

fn in_folder(hint: &str, folder: &Path) -> String {
    let placed = |word: &str| {
        let page = word.trim_end_matches([',', ';', '.', ':', ')']);
        let path = page.strip_prefix(IN_SOURCE).filter(|name| !name.contains('/')).map(|name| folder.join(name));
        match path.filter(|path| path.is_file()) {
            Some(path) => format!("{}{}", path.display(), &word[page.len()..]),
            None => word.to_owned(),
        }
    };
    hint.split(' ').map(placed).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_named_where_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("recipes.md"), "").expect("ours");
        let there = folder.path().join("recipes.md").display().to_string();
        for (hint, expected) in [
            ("see docs/recipes.md", format!("see {there}")),
            ("docs/recipes.md; and more", format!("{there}; and more")),
            ("see docs/none.md", "see docs/none.md".to_owned()),
            ("-v docs/../recipes.md:/x", "-v docs/../recipes.md:/x".to_owned()),
            ("a/docs/recipes.md", "a/docs/recipes.md".to_owned()),
        ] {
            assert_eq!(in_folder(hint, folder.path()), expected);
        }
    }
}
