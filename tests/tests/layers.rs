//! Files of a crate do not import each other in a circle, and some things are done in one place or nowhere. Which crate
//! uses which, Cargo.toml says.
//!
//! Reads every path of names in the sources, in a `use` or in the midst of code.

mod named_tests;

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

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
const SHIM_PROCESS: [&str; 8] = [
    "executor/src",
    "executor/cgroup/src",
    "executor/model/src",
    "executor/sys/src",
    "shim/log/src",
    "shim/protocol/src",
    "shim/task/src",
    "shim/containerd/src",
];

/// What there of it runs in a worker, or in a program that may wait, and may have threads by
/// then: it waits for its child itself, and for no other.
const NOT_THE_SHIMS: [&str; 2] = ["executor/src/hostside/systemd.rs", "shim/containerd/src/background.rs"];

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

/// Two files that import each other, by whatever way, are one that nobody can read alone. The file that leads to a folder is
/// left out: it passes on names of the files there.
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

/// A source file.
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
        text: fs::read_to_string(&path).expect("a source is text"),
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

    /// Every path of names joined by `::`, with its line; groups in braces are taken apart: `a::{b, c::d}` is `a::b` and
    /// `a::c::d`.
    fn paths(&self) -> Vec<(usize, String)> {
        let tokens = self.text.parse().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let mut found = Vec::new();
        collect_paths(tokens, "", &mut found);
        found
    }
}

fn is_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(colon) if colon.as_char() == ':')
}

/// Adds the paths in `tokens` to `found`. `within` is what the group that they are in stands behind: `a::` for `a::{b}`.
fn collect_paths(tokens: TokenStream, within: &str, found: &mut Vec<(usize, String)>) {
    let (mut path, mut line) = (String::new(), 0);
    let end = |path: &mut String, line: usize, found: &mut Vec<(usize, String)>| {
        let whole = format!("{within}{}", path.trim_start_matches("::"));
        if !path.is_empty() && whole.contains("::") {
            found.push((line, whole));
        }
        path.clear();
    };
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let goes_on = path.is_empty() || path.ends_with("::");
        match token {
            // `a::{b as c}`: what it is called here does not matter.
            TokenTree::Ident(name) if name == "as" => {
                end(&mut path, line, found);
                let _ = tokens.next_if(|next| !within.is_empty() && matches!(next, TokenTree::Ident(_)));
            }
            TokenTree::Ident(name) => {
                if !goes_on {
                    end(&mut path, line, found);
                }
                line = name.span().start().line;
                path += &name.to_string();
            }
            colon if is_colon(&colon) && tokens.peek().is_some_and(is_colon) => {
                tokens.next();
                path += "::";
            }
            TokenTree::Punct(star) if star.as_char() == '*' && path.ends_with("::") => path += "*",
            TokenTree::Group(group) => {
                let behind = match path.ends_with("::") && group.delimiter() == Delimiter::Brace {
                    true => format!("{within}{}", std::mem::take(&mut path)),
                    false => String::new(),
                };
                end(&mut path, line, found);
                collect_paths(group.stream(), &behind, found);
            }
            _ => end(&mut path, line, found),
        }
    }
    end(&mut path, line, found);
}

#[test]
fn paths_are_found_wherever_they_are() {
    let source = |text: &str| Source { name: "executor/src/io.rs".to_owned(), text: text.to_owned() };
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
        text: "use super::pipe; use pipe::Pipe; use crate::launch::run; use tokio::fs; use super::Root;".to_owned(),
    });
    let imports = |file: usize| files[file].imports("executor/src", &files);
    assert_eq!((imports(1), imports(2), imports(3)), (vec![2, 3], vec![3], vec![]));
}
