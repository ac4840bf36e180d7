//! The command, its arguments and its environment.

use super::rules::{absolute, no_nul, require};
use crate::invalid::Invalid;
use crate::task::Task;
use crate::values::Ceiling;

/// MAX_ARG_STRLEN (include/uapi/linux/binfmts.h): the most bytes of one
/// argument or variable, its NUL included; execve(2) answers E2BIG beyond.
const LONGEST_STRING: usize = 131_072;

/// The most bytes of the environment. The kernel gives arguments and
/// environment together a quarter of the stack limit, 2 MiB by default; a
/// quarter of that again leaves room for the arguments of what the task runs.
const LARGEST_ENVIRONMENT: usize = 512 * 1024;

/// The kernel's share of the default stack limit of 8 MiB, and never more than
/// three quarters of that (bprm_stack_limits in fs/exec.c).
const DEFAULT_STACK: u64 = 8 << 20;
const MOST_FOR_STRINGS: u64 = (8 << 20) / 4 * 3;
/// ARG_MAX: what is granted whatever the stack limit.
const LEAST_FOR_STRINGS: u64 = 131_072;

/// sysctl_nr_open_max (fs/file.c): what fs.nr_open itself can be raised to.
/// Beyond it setrlimit(2) answers EPERM, to root too.
const MOST_FILES: u64 = 0x7fff_ffc0;

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    require(!task.command.is_empty() || task.bundle.is_some(), "command", || {
        "is empty; write the program to run".into()
    })?;
    string("command", &task.command)?;
    for (index, folder) in task.command_folders.iter().enumerate() {
        absolute(&format!("command_folders[{index}]"), folder)?;
    }
    for (index, argument) in task.args.iter().enumerate() {
        string(&format!("args[{index}]"), argument)?;
    }
    environment(task)?;
    all_strings(task)?;
    require(task.init != Some(true) || task.pids != Some(Ceiling::At(1)), "init", || {
        "is a process of its own, and pids allows one alone; raise pids to 2".into()
    })?;
    require(task.timeout.is_none_or(|timeout| !timeout.as_std().is_zero()), "timeout", || {
        "is 0, which leaves no time to run; write how long, such as 10s".into()
    })?;
    if let Some(workdir) = &task.workdir {
        absolute("workdir", workdir)?;
    }
    for (name, path) in [("output.stdout", &task.output.stdout), ("output.stderr", &task.output.stderr)] {
        if let Some(path) = path {
            absolute(name, path)?;
        }
    }
    require(!(task.terminal && task.output.stderr.is_some()), "output.stderr", || {
        "a task with a terminal has one stream for all that it writes; give output.stdout alone".into()
    })?;
    for (key, value) in &task.labels {
        require(!key.is_empty(), "labels", || "a label has no name".into())?;
        no_nul("labels", key)?;
        no_nul(&format!("labels.{key}"), value)?;
    }
    for (resource, limit) in &task.rlimits {
        let value = |limit| match limit {
            Ceiling::At(value) => value,
            Ceiling::Unlimited => u64::MAX,
        };
        require(value(limit.soft) <= value(limit.hard), &format!("rlimits.{resource}"), || {
            format!("the soft limit {} is above the hard one, {}", limit.soft, limit.hard)
        })?;
    }
    let files = task.rlimits.iter().find(|(r, _)| r.name() == "nofile");
    if let Some((_, limit)) = files {
        let known = matches!(limit.hard, Ceiling::At(most) if most <= MOST_FILES);
        require(known, "rlimits.nofile", || {
            format!("the hard limit is {}; the kernel takes a number up to fs.nr_open, 1048576 by default", limit.hard)
        })?;
    }
    if let Some(adjustment) = task.oom_score_adj {
        require((-1000..=1000).contains(&adjustment), "oom_score_adj", || {
            format!("{adjustment} is not between -1000 and 1000")
        })?;
    }
    Ok(())
}

pub(super) fn string(field: &str, text: &str) -> Result<(), Invalid> {
    no_nul(field, text)?;
    require(text.len() < LONGEST_STRING, field, || {
        format!("has {} bytes; the kernel takes {}", text.len(), LONGEST_STRING - 1)
    })
}

fn environment(task: &Task) -> Result<(), Invalid> {
    for (key, value) in &task.env {
        require(!key.is_empty(), "env", || "a variable has no name".into())?;
        require(!key.contains('='), "env", || {
            format!("{:?} is not a variable's name: it contains '='", shortened(key))
        })?;
        no_nul("env", key)?;
        let field = format!("env.{}", shortened(key));
        no_nul(&field, value)?;
        // "KEY=" and the NUL count too.
        let bytes = key.len() + value.len() + 2;
        require(bytes <= LONGEST_STRING, &field, || {
            format!("takes {bytes} bytes with its name; the kernel takes {LONGEST_STRING}")
        })?;
    }
    let bytes: usize = task.env.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
    require(bytes <= LARGEST_ENVIRONMENT, "env", || {
        let largest = task.env.iter().max_by_key(|(_, v)| v.len());
        let largest = largest.map_or("", |(k, _)| shortened(k));
        format!(
            "takes {bytes} bytes, {largest} the most of them; at most {LARGEST_ENVIRONMENT} \
             leave the task room for arguments: pass the rest in a file"
        )
    })
}

/// Arguments and environment share what the kernel grants of the stack limit.
fn all_strings(task: &Task) -> Result<(), Invalid> {
    let strings = |texts: &mut dyn Iterator<Item = usize>| -> u64 {
        // Each string has its NUL and a pointer to it.
        texts.map(|length| length as u64 + 9).sum()
    };
    let args = strings(&mut task.args.iter().map(String::len));
    let env = strings(&mut task.env.iter().map(|(k, v)| k.len() + 1 + v.len()));
    let total = args + env + task.command.len() as u64 + 9;
    let stack = task.rlimits.iter().find(|(resource, _)| resource.name() == "stack");
    let stack = match stack.map(|(_, limit)| limit.soft) {
        Some(Ceiling::At(bytes)) => bytes,
        Some(Ceiling::Unlimited) => u64::MAX,
        None => DEFAULT_STACK,
    };
    let most = (stack / 4).clamp(LEAST_FOR_STRINGS, MOST_FOR_STRINGS);
    require(total <= most, "args", || {
        format!(
            "arguments and environment take {total} bytes; the kernel takes {most}, \
             a quarter of the stack limit"
        )
    })
}

/// A name short enough for an error.
fn shortened(name: &str) -> &str {
    match name.char_indices().nth(64) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{accepted, refused, task};
    use super::*;

    #[test]
    fn a_task_needs_a_command() {
        let error = Task::default().validate().unwrap_err();
        assert_eq!(error.to_string(), "command: is empty; write the program to run");
    }

    #[test]
    fn nul_bytes_are_refused_anywhere() {
        refused(r#"args = ["a\u0000b"]"#, "args[0]", "NUL");
        refused(r#"env = {A = "\u0000"}"#, "env.A", "NUL");
        refused("env = {\"A\\u0000\" = '1'}", "env", "NUL");
        refused(r#"workdir = "/a\u0000""#, "workdir", "NUL");
        refused(r#"rootfs = "/a\u0000""#, "rootfs", "NUL");
        refused(r#"labels = {a = "\u0000"}"#, "labels.a", "NUL");
        refused(r#"apparmor = "a\u0000""#, "apparmor", "NUL");
        refused(r#"sysctls = {"kernel.sem" = "\u0000"}"#, "sysctls.kernel.sem", "NUL");
        refused(r#"unified = {"memory.max" = "\u0000"}"#, "unified.memory.max", "NUL");
        let mut task = task("").unwrap();
        task.command = "a\0b".into();
        assert_eq!(task.validate().unwrap_err().field, "command");
    }

    #[test]
    fn variables_need_a_name_without_an_equals_sign() {
        refused("env = {'' = 'a'}", "env", "no name");
        refused("env = {'A=B' = 'a'}", "env", "contains '='");
    }

    #[test]
    fn strings_beyond_the_kernels_limit_are_refused_by_name() {
        // "A=" + value + NUL is 131,072 bytes exactly, then one more.
        accepted(&format!("env = {{A = '{}'}}", "x".repeat(131_069)));
        refused(&format!("env = {{A = '{}'}}", "x".repeat(131_070)), "env.A", "131073");
        accepted(&format!("args = ['{}']", "x".repeat(131_071)));
        refused(&format!("args = ['{}']", "x".repeat(131_072)), "args[0]", "131072");
    }

    #[test]
    fn an_environment_of_a_megabyte_is_refused() {
        refused(&format!("env = {{BIG = '{}'}}", "x".repeat(1 << 20)), "env.BIG", "1048");
        let mut many = task("").unwrap();
        for index in 0..1000 {
            many.env.insert(format!("V{index}"), "x".repeat(1000));
        }
        let error = many.validate().unwrap_err();
        assert_eq!(error.field, "env");
        assert!(error.reason.contains("524288"), "{error}");
    }

    #[test]
    fn arguments_that_no_stack_holds_are_refused() {
        let mut many = task("").unwrap();
        many.args = vec!["x".repeat(1000); 3000];
        assert_eq!(many.validate().unwrap_err().field, "args");
        many.rlimits.insert("stack".parse().unwrap(), "unlimited".parse().unwrap());
        many.validate().unwrap();
    }

    #[test]
    fn paths_must_be_absolute() {
        refused("workdir = 'tmp'", "workdir", "not an absolute path");
        refused("command_folders = ['/', 'bin']", "command_folders[1]", "not an absolute path");
        refused("output.stdout = 'log'", "output.stdout", "not an absolute path");
        refused("output.stderr = 'log'", "output.stderr", "not an absolute path");
        refused("terminal = true\noutput.stderr = '/log'", "output.stderr", "output.stdout alone");
    }

    #[test]
    fn limits_of_the_process_are_checked() {
        refused("rlimits.nofile = '2:1'", "rlimits.nofile", "above the hard one");
        refused("rlimits.nofile = 'unlimited:1'", "rlimits.nofile", "above the hard one");
        accepted("rlimits = {nofile = '1:1048576', core = '1:unlimited'}");
        refused("rlimits.nofile = 'unlimited'", "rlimits.nofile", "fs.nr_open");
        refused("oom_score_adj = 1001", "oom_score_adj", "-1000 and 1000");
        refused("labels = {'' = 'a'}", "labels", "no name");
    }
}
