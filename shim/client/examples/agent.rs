//! An agent that has shims run its tasks: any program can do this.
//!
//!   agent STATE blocking|threads|async
//!
//! Starts tasks in the state folder STATE, looks into them, follows their events, stops them and removes them: without an
//! event loop, from four threads, or from two threads with an event loop of tokio each. `bowline-shim` is in the `PATH`.

#![allow(clippy::print_stdout, reason = "it tells what it does")]

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use bowline_client::{Client, Error, Event, Exec, ExecEnd, Kind, Result, Start, blocking};

/// A service with a memory limit, named by `number`.
fn service(number: u32) -> Result<Start> {
    let name = format!("agent-{}-{number}", std::process::id());
    let limits = "memory.limit = '64M'\nstop.grace = '1s'";
    Start::from_toml(&format!("name = '{name}'\ncommand = 'sleep'\nargs = ['1000']\n{limits}"))
}

/// Takes one task through its life by blocking calls, without an event loop.
fn run(client: &blocking::Client, number: u32) -> Result<()> {
    let task = client.start(service(number)?)?;
    let mut events = task.events()?;

    let command = Exec::new(["sh", "-c", "echo inside; exit 3"]).timeout(Duration::from_secs(60));
    let said = task.exec(command)?;
    assert_eq!((said.end, said.stdout.as_slice()), (ExecEnd::Exited(3), b"inside\n".as_slice()));

    assert_eq!(task.stats()?.memory.limit_bytes, Some(64 << 20));
    task.update_toml("memory.limit = '32M'")?;
    assert_eq!(task.stats()?.memory.limit_bytes, Some(32 << 20));

    assert!(task.wait_for(Duration::from_millis(1))?.is_none(), "it runs");
    let report = task.stop()?;
    println!("{} was ended by {:?}", task.id(), report.signal);

    let mut names = Vec::new();
    loop {
        let entry = events.wait_for_next()?;
        names.push(entry.event.name());
        if let Event::Exited { .. } = entry.event {
            break;
        }
    }
    assert_eq!(names, ["created", "started", "exec", "updated", "exited"]);
    task.remove(false).map(drop)
}

/// With an event loop, the caller's.
async fn run_async(client: &Client, number: u32) -> Result<()> {
    let task = client.start(service(number)?).await?;
    let said = task.exec(Exec::new(["echo", "inside"])).await?;
    assert_eq!(said.stdout, b"inside\n");
    println!("{} has {:?} bytes in memory", task.id(), task.stats().await?.memory.usage_bytes);

    // Whoever waits may be another part of the program.
    let (report, stopped) = tokio::join!(task.wait(), task.stop());
    assert_eq!(report?, stopped?);
    let mut events = task.events()?;
    while !matches!(events.next().await?.event, Event::Exited { .. }) {}
    task.remove(false).await.map(drop)
}

/// Does `act` in several threads at a time; the first error counts.
fn in_threads(count: u32, act: impl Fn(u32) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let act = &act;
        let all: Vec<_> = (0..count).map(|number| scope.spawn(move || act(number))).collect();
        let broke = |_| Err(Error::new(Kind::Internal, "a thread broke off"));
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(broke))
    })
}

fn agent() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [state, how] = &arguments[..] else {
        return Err(Error::new(Kind::Usage, "usage: agent STATE blocking|threads|async"));
    };
    match how.as_str() {
        "blocking" => run(&blocking::Client::new(state)?, 0),
        "threads" => {
            let client = blocking::Client::new(state)?;
            in_threads(4, |number| run(&client, number))
        }
        "async" => {
            let client = Client::new(state)?;
            in_threads(2, |number| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
                runtime.block_on(async {
                    let both = tokio::join!(run_async(&client, 2 * number), run_async(&client, 2 * number + 1));
                    both.0.and(both.1)
                })
            })
        }
        _ => Err(Error::new(Kind::Usage, format!("{how} is not a way to run it"))),
    }
}

fn main() -> ExitCode {
    match agent() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("agent: {error}");
            error.hint_text().iter().for_each(|hint| println!("hint: {hint}"));
            ExitCode::FAILURE
        }
    }
}
