//! An agent that is its own executor: one process, one thread, several tasks, no other program of bowline's.
//!
//!   embedded-agent STATE
//!
//! Runs two tasks, looks into one and stops it, waits for the other, and leaves nothing behind in the folder STATE. What
//! it asks of the process it is in, the documentation of the crate says; for any other program, see the client's example.

#![allow(clippy::print_stdout, reason = "it tells what it does")]

use bowline_executor::systemd::Systemd;
use bowline_executor::{
    Config, Error, Exec, ExecEnd, Executor, Kind, Launch, Leave, Result, ShimCgroup, StateDir, serve,
};
use bowline_spec::id::TaskId;
use bowline_spec::{Format, parse};

/// The names of tasks are unique in their state folder, and on the host in its cgroups.
fn id(name: &str) -> Result<TaskId> {
    Ok(format!("agent-{}-{name}", std::process::id()).parse()?)
}

async fn agent(executor: Executor) -> Result<()> {
    let (service, job) = (id("service")?, id("job")?);
    let description = "command = 'sleep'\nargs = ['1000']\nmemory.limit = '64M'\nstop.grace = '1s'";
    executor.launch(Launch::new(service.clone(), parse(description, Format::Toml)?)).await?;
    let description = "command = 'sh'\nargs = ['-c', 'echo done; exit 3']";
    executor.launch(Launch::new(job.clone(), parse(description, Format::Toml)?)).await?;

    let command = ["sh", "-c", "echo inside"].map(str::to_owned).to_vec();
    let said = executor.exec(&service, Exec { command, ..Exec::default() }).await?.outcome().await?;
    assert_eq!(said.end, ExecEnd::Exited(0));
    println!("exec said {:?}", String::from_utf8_lossy(&said.stdout));
    println!("the memory limit is {:?} bytes", executor.stats(&service)?.memory.limit_bytes);

    let report = executor.wait(&job).await?;
    println!("the job exited with {:?} and said {:?}", report.exit_code, report.stdout_tail);

    executor.shutdown(&service, None, None).await?;
    println!("the service was ended by {:?}", executor.wait(&service).await?.signal);

    for id in [&service, &job] {
        executor.remove(id).await?;
    }
    // This executor waits to be told.
    executor.leave();
    Ok(())
}

fn main() -> Result<()> {
    let usage = || Error::new(Kind::Usage, "usage: embedded-agent STATE");
    let state = StateDir::new(std::env::args().nth(1).ok_or_else(usage)?);
    // The executor's own folder, with a name that no task has; its lock says that the executor lives.
    let (folder, lock) = state.create(&id("executor")?)?;
    // No task here is a unit of systemd: the program that asks systemd is never started.
    let systemd = Systemd::by("/usr/bin/bowline");
    let config = Config { leave: Leave::WhenTold, ..Config::new(folder.clone(), state, ShimCgroup::Overhead, systemd) };
    serve(config, agent)?;
    folder.remove(lock)
}
