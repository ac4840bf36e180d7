//! Rules of iptables besides those that plugins make, and what plugins leave behind.
//!
//! The plugin firewall lets a task's own packets through where the host forwards nothing, as with Docker; one more rule
//! does so for those that portmap leads in. Plugins remove their rules, but not the chains that they have made: the
//! last task removes these where they hold nothing but the plugins' own frame. A host without iptables has no rules.

use std::path::PathBuf;

use bowline_error::{Error, Kind, Result};
use bowline_sys::Ended;

use super::bounded_run::{self, Bounds, told};
use crate::process::program::Program;

/// Chains that portmap and firewall make for all networks, and never remove.
const FRAME: [&str; 5] = ["CNI-FORWARD", "CNI-ADMIN", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"];

/// By these each chain of a single task's begins, such as `CNI-DN-…`.
const PLUGINS: &str = "CNI-";

/// Lets packets into `bridge` that portmap has led there.
///
/// # Errors
/// `Internal`, with what iptables has said.
pub fn admit(bridge: &str, bounds: Bounds<'_>) -> Result<()> {
    let Some(iptables) = find("iptables") else { return Ok(()) };
    let rule = ["FORWARD", "-o", bridge, "-m", "conntrack", "--ctstate", "DNAT", "-m", "comment", "--comment", COMMENT];
    let rule = [&rule[..], &["-j", "ACCEPT"][..]].concat();
    let ask = |verb: &'static str| {
        let args = ["iptables", "-w", verb].into_iter().chain(rule.iter().copied());
        run(Program::new(&iptables, args, environment())?, bounds)
    };
    if ask("-C").is_err() {
        ask("-I")?;
    }
    Ok(())
}

/// Removes the rule of [`admit`], and chains of plugins that hold nothing.
///
/// # Errors
/// `Internal`, with what iptables has said.
pub fn clear(bridge: &str, bounds: Bounds<'_>) -> Result<()> {
    let (Some(save), Some(restore)) = (find("iptables-save"), find("iptables-restore")) else { return Ok(()) };
    let saved = run(Program::new(&save, ["iptables-save"], environment())?, bounds)?;
    let script = removal(&saved, bridge);
    if script.is_empty() {
        return Ok(());
    }
    let restore = Program::new(&restore, ["iptables-restore", "--noflush", "-w"], environment())?;
    run(restore.reading(script.as_bytes())?, bounds).map(drop)
}

/// The comment of the rule of [`admit`].
const COMMENT: &str = "bowline";

/// What iptables-restore has to do, according to what iptables-save has said; empty if nothing.
fn removal(saved: &str, bridge: &str) -> String {
    let mut script = String::new();
    for table in saved.split_inclusive("COMMIT\n") {
        let name = table.lines().find(|line| line.starts_with('*'));
        let (Some(name), commands) = (name, removal_in(table, bridge)) else { continue };
        if !commands.is_empty() {
            script += &format!("{name}\n{}\nCOMMIT\n", commands.join("\n"));
        }
    }
    script
}

fn removal_in(table: &str, bridge: &str) -> Vec<String> {
    let rules = || table.lines().filter_map(|line| line.strip_prefix("-A "));
    let ours = |rule: &&str| {
        rule.starts_with(&format!("FORWARD -o {bridge} ")) && rule.contains(&format!("--comment {COMMENT} "))
    };
    let mut commands: Vec<String> = rules().filter(ours).map(|rule| format!("-D {rule}")).collect();
    let chains: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next()).collect();
    let frame: Vec<&str> = chains.iter().copied().filter(|chain| FRAME.contains(chain)).collect();
    let is_anothers = |chain: &&str| chain.starts_with(PLUGINS) && !FRAME.contains(chain);
    let is_used = |rule: &str| match rule.split_once(' ') {
        Some(("CNI-ADMIN" | "CNI-HOSTPORT-DNAT", _)) => true,
        Some(("CNI-FORWARD", rest)) => !rest.ends_with("-j CNI-ADMIN"),
        _ => false,
    };
    if frame.is_empty() || chains.iter().any(is_anothers) || rules().any(is_used) {
        return commands;
    }
    let leads_there = |rule: &&str| frame.iter().any(|chain| rule.ends_with(&format!(" -j {chain}")));
    commands.extend(rules().filter(leads_there).map(|rule| format!("-D {rule}")));
    commands.extend(frame.iter().map(|chain| format!("-F {chain}")));
    commands.extend(frame.iter().map(|chain| format!("-X {chain}")));
    commands
}

/// Where the program of this name is that plugins would run too.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = bounded_run::path();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_absolute() && path.exists())
}

fn environment() -> [std::ffi::OsString; 1] {
    [["PATH".into(), bounded_run::path()].join("=".as_ref())]
}

/// Runs the program, and returns what it says.
fn run(program: Program<'_>, bounds: Bounds<'_>) -> Result<String> {
    let said = bounded_run::run(program, bounds).map_err(|error| error.within("iptables failed"))?;
    match said.ended {
        Ended::Exited(0) => Ok(String::from_utf8_lossy(&said.answer).into_owned()),
        _ => Err(Error::new(Kind::Internal, format!("iptables failed, and it said {:?}", told(&said.log)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &str = "*filter
:FORWARD ACCEPT [0:0]
:CNI-ADMIN - [0:0]
:CNI-FORWARD - [0:0]
-A FORWARD -o br0 -m conntrack --ctstate DNAT -m comment --comment bowline -j ACCEPT
-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD
-A CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
COMMIT
";

    #[test]
    fn an_idle_frame_is_removed_with_our_rule() {
        let expected = "*filter
-D FORWARD -o br0 -m conntrack --ctstate DNAT -m comment --comment bowline -j ACCEPT
-D FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD
-D CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN
-F CNI-ADMIN
-F CNI-FORWARD
-X CNI-ADMIN
-X CNI-FORWARD
COMMIT
*nat
-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-F CNI-HOSTPORT-DNAT
-X CNI-HOSTPORT-DNAT
COMMIT
";
        assert_eq!(removal(IDLE, "br0"), expected);
        assert_eq!(removal("", "br0"), "");
    }

    #[test]
    fn what_others_use_stays() {
        for rule in [
            "-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT",
            "-A CNI-ADMIN -j DROP",
            ":CNI-abc - [0:0]",
            ":CNI-DN-abc - [0:0]",
        ] {
            let used = IDLE.replacen("COMMIT", &format!("{rule}\nCOMMIT"), 1);
            let script = removal(&used, "br1");
            assert!(!script.contains("*filter") && script.contains("*nat"), "{rule}: {script}");
        }
    }
}
