//! Files of a crate do not import each other in a circle, and some things are done in one place or nowhere. Which crate
//! uses which, Cargo.toml says.
//!
//! Reads the sources as text: every path of names, in a `use` or in the midst of code.

mod security_page;

use std::fs;
use std::path::{Path, PathBuf};

/// Where `unsafe` may be: the system calls, and those of a program without libraries.
const UNSAFE: [&str; 2] = ["executor/sys/", "executor/init/"];

/// Where the calls are that a kernel may lack: each has a fallback, and can be
/// taken for absent there.
const RECENT: &str = "executor/sys/src/recent.rs";
const RECENT_CALLS: [&str; 11] = [
    "mount::fsopen",
    "mount::fsmount",
    "mount::fspick",
    "mount::fsconfig_create",
    "mount::fsconfig_reconfigure",
    "mount::fsconfig_set_fd",
    "mount::fsconfig_set_flag",
    "mount::fsconfig_set_string",
    "mount::move_mount",
    "mount::open_tree",
    "fs::openat2",
];

/// What runs in a shim: one thread that reaps every child and never blocks.
const SHIM_PROCESS: [&str; 7] = [
    "executor/src",
    "executor/cgroup/src",
    "executor/sys/src",
    "shim/log/src",
    "shim/protocol/src",
    "shim/task/src",
    "shim/containerd/src",
];

/// What there of it runs in a worker, or in a program that may wait, and may have threads by
/// then: it waits for its child itself, and for no other.
const NOT_THE_SHIMS: [&str; 2] = ["executor/src/systemd.rs", "shim/containerd/src/background.rs"];

/// What starts a thread, blocks the loop, or has its child reaped by the sweep.
const NOT_IN_THE_SHIM: [&str; 7] = [
    "process::Command",
    "tokio::process",
    "tokio::fs",
    "spawn_blocking",
    "thread::spawn",
    "thread::Builder",
    "thread::scope",
];

/// Two files that import each other, by whatever way, are one that nobody can read alone.
#[test]
fn no_files_import_each_other() {
    let mut found = Vec::new();
    for folder in crates() {
        let files = sources(&folder);
        let imports: Vec<Vec<usize>> = files.iter().map(|file| file.imports(&folder, &files)).collect();
        let reached: Vec<Vec<bool>> = (0..files.len()).map(|from| reached(from, &imports)).collect();
        for (from, to) in imports.iter().enumerate().flat_map(|(from, all)| all.iter().map(move |to| (from, *to))) {
            if reached[to][from] {
                found.push(format!("{} imports {}", files[from].name, files[to].name));
            }
        }
    }
    assert_none("in a circle", found);
}

/// The sources of every crate of the product.
fn crates() -> Vec<String> {
    let mut folders = vec!["spec".to_owned(), "executor".to_owned()];
    for parent in ["executor", "shim"] {
        let entries = fs::read_dir(top().join(parent)).expect("a folder of ours").flatten();
        folders.extend(entries.map(|entry| format!("{parent}/{}", entry.file_name().display())));
    }
    let has = |folder: &str, part: &str| top().join(folder).join(part).exists();
    folders.retain(|folder| has(folder, "Cargo.toml") && has(folder, "src"));
    folders.sort();
    folders.into_iter().map(|folder| format!("{folder}/src")).collect()
}

/// Which files `from` leads to.
fn reached(from: usize, imports: &[Vec<usize>]) -> Vec<bool> {
    let mut seen = vec![false; imports.len()];
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        for next in &imports[file] {
            if !std::mem::replace(&mut seen[*next], true) {
                left.push(*next);
            }
        }
    }
    seen
}

#[test]
fn unsafe_is_in_one_crate() {
    let all = ["spec", "executor", "shim", "tests", "bench"].into_iter().flat_map(sources);
    let found = all
        .filter(|source| !UNSAFE.iter().any(|place| source.name.starts_with(place)))
        .flat_map(|source| source.words("unsafe"));
    assert_none("unsafe outside of its crate", found.collect());
}

/// A program that links the client needs no C library for that: libseccomp is behind a feature, which the client's own
/// dependencies do not ask for.
#[test]
fn the_client_links_no_libseccomp() {
    let tree = |package: &str| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = std::process::Command::new(cargo);
        command.args(["tree", "--offline", "--locked", "--edges", "normal", "--package", package]).current_dir(top());
        let ran = command.output().expect("cargo runs this test");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text")
    };
    assert!(tree("bowline-shim").contains("libseccomp"));
    assert!(!tree("bowline-client").contains("libseccomp"));
}

#[test]
fn calls_that_a_kernel_may_lack_are_in_one_file() {
    let all = ["spec", "executor", "shim"].into_iter().flat_map(sources).filter(|source| source.name != RECENT);
    let found = all.flat_map(|source| source.paths_of(|path| RECENT_CALLS.iter().any(|call| has(path, call))));
    assert_none("not by the fallback's way", found.collect());
}

#[test]
fn the_shim_starts_no_thread_and_no_command() {
    let all =
        SHIM_PROCESS.into_iter().flat_map(sources).filter(|source| !NOT_THE_SHIMS.contains(&source.name.as_str()));
    let found =
        all.flat_map(|source| source.without_tests().paths_of(|path| NOT_IN_THE_SHIM.iter().any(|bad| has(path, bad))));
    assert_none("not in the shim", found.collect());
}

/// Whether `path` has all parts of `part` one after the other: `std::fs::File`
/// has `fs::File`, not `fs::Fil`.
fn has(path: &str, part: &str) -> bool {
    format!("::{path}::").contains(&format!("::{part}::"))
}

fn assert_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// A source file, its comments and literals blanked out.
struct Source {
    /// Below the top of the checkout.
    name: String,
    text: String,
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a package of the workspace")
}

/// The file, or all files below the folder, that `name` says.
fn sources(name: &str) -> Vec<Source> {
    let top = top();
    let mut files = Vec::new();
    collect(&top.join(name), &mut files);
    files.sort();
    assert!(!files.is_empty(), "there are no sources in {name}");
    let source = |path: PathBuf| Source {
        name: path.strip_prefix(top).expect("found below it").display().to_string(),
        text: blanked(&fs::read_to_string(&path).expect("a source is text")),
    };
    files.into_iter().map(source).collect()
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder of ours").flatten() {
            collect(&entry.path(), files);
        }
    } else if path.extension().is_some_and(|e| e == "rs") {
        files.push(path.to_owned());
    }
}

impl Source {
    /// The names of the modules that lead to it from the root of the crate in `folder`.
    fn module(&self, folder: &str) -> Vec<&str> {
        let below = self.name.strip_prefix(folder).unwrap_or(&self.name).trim_matches('/').trim_end_matches(".rs");
        let mut names: Vec<&str> = below.split('/').collect();
        if ["mod", "lib", "main"].contains(names.last().expect("a name")) {
            names.pop();
        }
        names
    }

    /// Which of the crate's `files` it imports from, but for its unit tests. What a folder's files share is in the file
    /// that leads to them, which does not count.
    fn imports(&self, folder: &str, files: &[Source]) -> Vec<usize> {
        let own = self.module(folder);
        let modules: Vec<Vec<&str>> = files.iter().map(|file| file.module(folder)).collect();
        let mut found = Vec::new();
        for (_, path) in self.without_tests().paths() {
            let parts: Vec<&str> = path.split("::").collect();
            let ups = parts.iter().take_while(|part| **part == "super").count();
            let whole = match parts[0] {
                "crate" => parts[1..].to_vec(),
                "self" => [&own[..], &parts[1..]].concat(),
                "super" => [&own[..own.len().saturating_sub(ups)], &parts[ups..]].concat(),
                child if modules.contains(&[&own[..], &[child]].concat()) => [&own[..], &parts].concat(),
                _ => continue,
            };
            // What is no module of its own is in the file that leads there.
            let file =
                (0..=whole.len()).rev().find_map(|end| modules.iter().position(|module| *module == whole[..end]));
            found.extend(file.filter(|file| !own.starts_with(&modules[*file]) && !found.contains(file)));
        }
        found
    }

    /// It without its unit tests, which are its last part.
    fn without_tests(&self) -> Source {
        let end = self.text.find("#[cfg(test)]\nmod ").or_else(|| self.text.find("#[cfg(test)]\n#[allow"));
        let end = end.unwrap_or(self.text.len());
        Source { name: self.name.clone(), text: self.text[..end].to_owned() }
    }

    fn paths_of(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let found = self.paths().into_iter().filter(|(_, path)| wanted(path));
        found.map(|(line, path)| format!("{}:{line}: {path}", self.name)).collect()
    }

    /// Where `word` is, as a word of its own.
    fn words(&self, word: &str) -> Vec<String> {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        let lines = self.text.lines().enumerate().filter(|(_, line)| line.split(|c| !part(c)).any(|w| w == word));
        lines.map(|(index, line)| format!("{}:{}: {}", self.name, index + 1, line.trim())).collect()
    }

    /// Every path of names joined by `::`, with its line; groups in braces are
    /// taken apart: `a::{b, c::d}` is `a::b` and `a::c::d`.
    fn paths(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let mut line = 1;
        // What each open brace stands behind; nothing for one that is no group.
        let mut groups: Vec<String> = Vec::new();
        let mut path = String::new();
        let mut rest = self.text.as_str();
        while let Some(c) = rest.chars().next() {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (token, after) = match length {
                0 if rest.starts_with("::") => rest.split_at(2),
                0 => rest.split_at(c.len_utf8()),
                _ => rest.split_at(length),
            };
            rest = after;
            match token {
                "::" => path += "::",
                "{" if path.ends_with("::") => {
                    let within = groups.last().cloned().unwrap_or_default();
                    groups.push(within + &std::mem::take(&mut path));
                }
                // `a::{b as c}`: what it is called here does not matter.
                "as" if path.is_empty() && groups.last().is_some_and(|within| !within.is_empty()) => {
                    rest = rest.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
                }
                _ if length > 0 && (path.is_empty() || path.ends_with("::")) => path += token,
                "*" if path.ends_with("::") => path += token,
                _ => {
                    let within = groups.last().cloned().unwrap_or_default();
                    let whole = within + path.trim_start_matches("::");
                    if whole.contains("::") && !path.is_empty() {
                        found.push((line, whole));
                    }
                    path.clear();
                    match token {
                        "{" => groups.push(String::new()),
                        "}" => drop(groups.pop()),
                        "\n" => line += 1,
                        _ if length > 0 => path += token,
                        _ => {}
                    }
                }
            }
        }
        found
    }
}

/// `text` with a blank for everything in comments and literals but newlines.
fn blanked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = literal_or_comment(rest);
        if length == 0 {
            // A name ends here at the earliest, so that `for"x"` is no raw string.
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (plain, after) = rest.split_at(word.max(c.len_utf8()));
            out.push_str(plain);
            rest = after;
        } else {
            let (hidden, after) = rest.split_at(length);
            out.extend(hidden.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = after;
        }
    }
    out
}

/// The length of the comment or literal that `text` begins with, or 0.
fn literal_or_comment(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return text.find("*/").map_or(text.len(), |end| end + 2);
    }
    if let Some(raw) = text.strip_prefix("br").or_else(|| text.strip_prefix('r')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let begin = text.len() - raw.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            return text[begin..].find(&close).map_or(text.len(), |end| begin + end + close.len());
        }
    }
    if let Some(quoted) = text.strip_prefix('"') {
        return 1 + end_of_quoted(quoted, '"');
    }
    // A lifetime has no closing quote right behind its one letter.
    let mut chars = text.chars();
    if chars.next() == Some('\'') {
        let (first, second) = (chars.next(), chars.next());
        if first == Some('\\') || second == Some('\'') {
            return 1 + end_of_quoted(&text[1..], '\'');
        }
    }
    0
}

fn end_of_quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return index + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[test]
fn paths_are_found_wherever_they_are() {
    let source = |text: &str| Source { name: "executor/src/io.rs".to_owned(), text: blanked(text) };
    let paths = |text: &str| source(text).paths().into_iter().map(|(_, path)| path).collect::<Vec<_>>();
    assert_eq!(
        paths("use crate::{network, sys::{self, Cloned}};"),
        ["crate::network", "crate::sys::self", "crate::sys::Cloned"]
    );
    assert_eq!(paths("use crate::{\n    io as i,\n    launch::*,\n};"), ["crate::io", "crate::launch::*"]);
    assert_eq!(paths("fn f() { let x = crate::launch::pipe(); g() }"), ["crate::launch::pipe"]);
    assert_eq!(paths("// crate::a\n/* crate::b */ \"crate::c\" r#\"crate::\"d\"# '\"' crate::e;"), ["crate::e"]);
    assert_eq!(paths("struct S<'a>(&'a crate::f::G);"), ["crate::f::G"]);
    let files = ["lib", "io/mod", "io/pipe", "launch"].map(|name| Source {
        name: format!("executor/src/{name}.rs"),
        text: blanked("use super::pipe; use pipe::Pipe; use crate::launch::run; use tokio::fs; use super::Root;"),
    });
    let imports = |file: usize| files[file].imports("executor/src", &files);
    assert_eq!((imports(1), imports(2), imports(3)), (vec![2, 3], vec![3], vec![]));
}
