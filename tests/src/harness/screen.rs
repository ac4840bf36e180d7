//! A person's terminal: a command under tmux, what its screen shows, and keys.
//!
//! ```no_run
//! # let host = bowline_tests::Host::new();
//! let screen = host.screen(["top"]);
//! screen.wait_for("COMMAND");
//! screen.press(["q"]);
//! assert_eq!(screen.wait_for_end(), 0);
//! screen.close();
//! host.assert_nothing_left();
//! ```
//!
//! Each screen has a tmux server of its own, whose socket is in the host's work
//! folder and which ends with the screen. What was on the screen stays when the
//! command has ended. Must not: show anything of tmux's own, such as a status line.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::{Host, Ran, binary, eventually, patience, process_exists};

/// As many columns as terminals have had since punched cards.
pub const COLUMNS: u16 = 80;
/// The rows of a screen, unless a test says otherwise.
pub const ROWS: u16 = 24;

/// What holds for every server. Nothing of the user's own is read.
const CONFIGURATION: &str = "\
set -g status off
set -g default-terminal screen-256color
set -s escape-time 0
";

/// Runs the command in the foreground, puts its exit code into a file, and
/// keeps the terminal open. tmux itself can miss the end of what is quick, and
/// hides the cursor at the end. Keys that are signals are the command's alone.
const KEEPER: &str = "trap : INT QUIT; \"$@\"; echo $? >\"$0\"; exec tail -f /dev/null";

/// A terminal with one command in it.
pub struct Screen<'h> {
    host: &'h Host,
    socket: PathBuf,
    /// The file that has the exit code, once there is one.
    ended: PathBuf,
    server: i32,
}

impl Host {
    /// `bowline ARGS` in a terminal of 80 × 24.
    #[track_caller]
    pub fn screen<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Screen<'_> {
        let mut command = Command::new(binary("bowline"));
        command.args(args);
        self.screen_of(command, COLUMNS, ROWS)
    }

    /// Any command in a terminal of `columns` × `rows`. Of the command only its
    /// words and the environment set on it count.
    #[track_caller]
    pub fn screen_of(&self, command: Command, columns: u16, rows: u16) -> Screen<'_> {
        Screen::open(self, &command, columns, rows)
    }
}

impl<'h> Screen<'h> {
    #[track_caller]
    fn open(host: &'h Host, command: &Command, columns: u16, rows: u16) -> Screen<'h> {
        let configuration = host.file("tmux.conf", CONFIGURATION);
        let socket = host.work().join(host.new_id());
        let ended = socket.with_extension("ended");
        let mut tmux = host.command("tmux");
        // The command has the server's environment. A variable that decides how
        // bowline looks is a test's to set.
        for name in ["CI", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "TMUX", "TMUX_PANE"] {
            tmux.env_remove(name);
        }
        tmux.env("LC_ALL", "C.UTF-8").arg("-u").arg("-S").arg(&socket).arg("-f").arg(configuration);
        tmux.args(["new-session", "-d", "-x", &columns.to_string(), "-y", &rows.to_string()]);
        tmux.args(["--", "/bin/sh", "-c", KEEPER]).arg(&ended).arg("env");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => tmux.arg([name, OsStr::new("="), value].join(OsStr::new(""))),
                None => tmux.arg("-u").arg(name),
            };
        }
        tmux.arg(command.get_program()).args(command.get_args());
        host.execute(tmux).assert_code(0);
        let mut screen = Screen { host, socket, ended, server: 0 };
        screen.server = screen.ask("#{pid}").parse().expect("tmux knows its own pid");
        screen
    }

    /// The lines that it shows now: trailing blanks and blank lines left out.
    #[track_caller]
    pub fn lines(&self) -> Vec<String> {
        self.captured(&[])
    }

    /// All lines as one text.
    #[track_caller]
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// The screen with the escape codes of colours and attributes.
    #[track_caller]
    pub fn coloured(&self) -> String {
        self.captured(&["-e"]).join("\n")
    }

    /// Waits until it shows `text`, and gives all that it shows then.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(&format!("{text:?} on the screen"), |screen| screen.contains(text))
    }

    /// Waits until what it shows is as `fact` wants it.
    #[track_caller]
    pub fn wait_until(&self, what: &str, fact: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        let mut last = String::new();
        let found = eventually("an answer", || {
            last = self.text();
            let over = started.elapsed() > patience() / 2;
            (over || fact(&last)).then(|| fact(&last))
        });
        assert!(found, "never came about: {what}; the screen shows\n{last}");
        last
    }

    /// Presses keys by their names in tmux: `q`, `C-c`, `Enter`, `Up`.
    #[track_caller]
    pub fn press<const N: usize>(&self, keys: [&str; N]) {
        self.tmux(&[&["send-keys"], &keys[..]].concat()).assert_code(0);
    }

    /// Types text as it is; a line ends with `\n`.
    #[track_caller]
    pub fn enter(&self, text: &str) {
        for (index, line) in text.split('\n').enumerate() {
            if index > 0 {
                self.press(["Enter"]);
            }
            if !line.is_empty() {
                self.tmux(&["send-keys", "-l", "--", line]).assert_code(0);
            }
        }
    }

    /// Makes it of `columns` × `rows`.
    #[track_caller]
    pub fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]).assert_code(0);
    }

    /// The device of the terminal, as `/dev/pts/7`.
    #[track_caller]
    pub fn device(&self) -> PathBuf {
        PathBuf::from(self.ask("#{pane_tty}"))
    }

    /// The pid of the command, while it runs.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        let keeper = self.ask("#{pane_pid}");
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
        children.unwrap_or_default().trim().parse().expect("the command is the keeper's only child")
    }

    /// Whether the cursor is shown, and whether the terminal shows its other screen.
    #[track_caller]
    pub fn modes(&self) -> (bool, bool) {
        let answer = self.ask("#{cursor_flag}#{alternate_on}");
        (answer.starts_with('1'), answer.ends_with('1'))
    }

    /// Waits for the command's end: its exit code, as a shell has it.
    #[track_caller]
    pub fn wait_for_end(&self) -> i32 {
        eventually("the end of the command on the screen", || fs::read_to_string(&self.ended).ok()?.trim().parse().ok())
    }

    /// Closes the terminal, which hangs up on a command that still runs.
    pub fn close(self) {}

    #[track_caller]
    fn ask(&self, format: &str) -> String {
        self.tmux(&["display-message", "-p", format]).assert_code(0).out()
    }

    #[track_caller]
    fn captured(&self, flags: &[&str]) -> Vec<String> {
        let ran = self.tmux(&[&["capture-pane", "-p"], flags].concat());
        let mut lines: Vec<String> = ran.assert_code(0).out().lines().map(|line| line.trim_end().to_owned()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    fn tmux(&self, args: &[&str]) -> Ran {
        tmux(self.host, &self.socket, args)
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // An error means that it has gone already.
        let _ = tmux(self.host, &self.socket, &["kill-server"]);
        if !std::thread::panicking() {
            eventually("tmux ends", || (!process_exists(self.server)).then_some(()));
        }
        let _ = fs::remove_file(&self.socket);
    }
}

fn tmux(host: &Host, socket: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new("tmux");
    // Not in the transcript: a test asks hundreds of times.
    command.env("BOWLINE_TEST", host.prefix()).env("LC_ALL", "C.UTF-8").arg("-u").arg("-S").arg(socket).args(args);
    let text = format!("tmux {}", args.join(" "));
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {text}: {error}"));
    Ran { command: text, code: output.status.code(), stdout: output.stdout, stderr: output.stderr }
}
