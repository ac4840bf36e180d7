//! Records and publishes what happens to tasks, for containerd.
//!
//! The executor's loop calls this, so that no event overtakes another.

use containerd_shim_protos::events::task as events;
use containerd_shim_protos::topics;
use containerd_shim_protos::types::task::Status;
use jiff::Timestamp;
use protobuf::MessageField;
use protobuf::well_known_types::timestamp::Timestamp as WireTimestamp;

use bowline_executor::{ManagerEvent, TaskEvent};

use super::containers::{Containers, Exit};
use super::publisher::Publisher;

/// The exit status of a process whose end nobody saw: as if killed by SIGKILL.
pub const KILLED: i32 = 137;

/// Records and publishes one event.
pub fn happened(containers: &Containers, publisher: &Publisher, event: TaskEvent) {
    let id = event.id.to_string();
    match event.what {
        ManagerEvent::Created { pid } => {
            let created = containers.with(&id, |container| {
                container.init.pid = pid.cast_unsigned();
                let io = &container.init.io;
                let io = events::TaskIO {
                    stdin: io.stdin.clone(),
                    stdout: io.stdout.clone(),
                    stderr: io.stderr.clone(),
                    terminal: io.terminal,
                    ..Default::default()
                };
                events::TaskCreate {
                    container_id: id.clone(),
                    bundle: container.bundle.to_string_lossy().into_owned(),
                    rootfs: container.rootfs.clone(),
                    io: MessageField::some(io),
                    pid: pid.cast_unsigned(),
                    ..Default::default()
                }
            });
            if let Ok(created) = created {
                publisher.publish(topics::TASK_CREATE_EVENT_TOPIC, created);
            }
        }
        ManagerEvent::Started { pid } => {
            set(containers, &id, "", pid, Status::RUNNING);
            let started = events::TaskStart { container_id: id, pid: pid.cast_unsigned(), ..Default::default() };
            publisher.publish(topics::TASK_START_EVENT_TOPIC, started);
        }
        ManagerEvent::ExecStarted { name, pid } => {
            set(containers, &id, &name, pid, Status::RUNNING);
            let pid = pid.cast_unsigned();
            let started = events::TaskExecStarted { container_id: id, exec_id: name, pid, ..Default::default() };
            publisher.publish(topics::TASK_EXEC_STARTED_EVENT_TOPIC, started);
        }
        ManagerEvent::ExecExited { name, pid, code, at } => {
            ended(containers, publisher, &id, &name, pid, Exit { status: code.cast_unsigned(), at });
        }
        ManagerEvent::Exited { pid, report } => {
            let status = report.exit_code.unwrap_or(KILLED).cast_unsigned();
            ended(containers, publisher, &id, "", pid, Exit { status, at: report.exited_at });
        }
        ManagerEvent::OutOfMemory => {
            let oom = events::TaskOOM { container_id: id, ..Default::default() };
            publisher.publish(topics::TASK_OOM_EVENT_TOPIC, oom);
        }
        ManagerEvent::Paused => {
            let _ = containers.process(&id, "", |init| init.status = Status::PAUSED);
            let paused = events::TaskPaused { container_id: id, ..Default::default() };
            publisher.publish(topics::TASK_PAUSED_EVENT_TOPIC, paused);
        }
        ManagerEvent::Checkpointed { images } => {
            let checkpoint = images.to_string_lossy().into_owned();
            let event = events::TaskCheckpointed { container_id: id, checkpoint, ..Default::default() };
            publisher.publish(topics::TASK_CHECKPOINTED_EVENT_TOPIC, event);
        }
        ManagerEvent::Resumed => {
            let _ = containers.process(&id, "", |init| init.status = Status::RUNNING);
            let resumed = events::TaskResumed { container_id: id, ..Default::default() };
            publisher.publish(topics::TASK_RESUMED_EVENT_TOPIC, resumed);
        }
    }
}

fn set(containers: &Containers, id: &str, exec: &str, pid: i32, status: Status) {
    // The caller may have given up the process meanwhile.
    let _ = containers.process(id, exec, |process| {
        process.pid = pid.cast_unsigned();
        process.status = status;
    });
}

fn ended(containers: &Containers, publisher: &Publisher, id: &str, exec: &str, pid: i32, exit: Exit) {
    // Publish before waiters are answered.
    let event = events::TaskExit {
        container_id: id.to_owned(),
        id: if exec.is_empty() { id } else { exec }.to_owned(),
        pid: pid.cast_unsigned(),
        exit_status: exit.status,
        exited_at: MessageField::some(timestamp(exit.at)),
        ..Default::default()
    };
    publisher.publish(topics::TASK_EXIT_EVENT_TOPIC, event);
    let _ = containers.process(id, exec, |process| process.end(exit));
}

/// Converts a time to its wire format.
pub fn timestamp(at: Timestamp) -> WireTimestamp {
    WireTimestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond(), ..WireTimestamp::default() }
}
