//! containerd's Sandbox service: one method for each call.
//!
//! A sandbox here is the namespaces that a pause process holds, plus the containers that the Task service creates in
//! this shim meanwhile. Nothing is locked while a call waits. Must not: know how a task is created.

use std::rc::Rc;
use std::time::Duration;

use bowline_executor::internal::waits;
use bowline_model::{Error, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use containerd_shim_protos::sandbox_api::*;
use containerd_shim_protos::types::platform::Platform;
use jiff::Timestamp;
use protobuf::MessageField;

use super::containers::Exit;
use super::error_codes::{Answer, refused};
use super::manager_events::{KILLED, timestamp};
use super::metrics;
use super::service::{Service, checked, seen_through};

use super::sandbox::{NOT_READY, READY, Wanted, files, info};
use bowline_protocol::calls::{Call, call, unknown_method, wait};

/// The Sandbox service of one shim. Cheap to clone.
#[derive(Clone)]
pub struct Sandboxes(pub Service);

impl Sandboxes {
    async fn begin(&self, id: &str) -> Result<StartSandboxResponse> {
        let Service { sandbox, executor, .. } = &self.0;
        let (wanted, bundle) = sandbox.begin(id)?;
        let begun = async {
            files::make(&bundle, &wanted).await?;
            executor.start_pause(wanted.pause).await
        };
        let began = match begun.await {
            Ok(pid) => {
                let began = sandbox.began(id, pid.cast_unsigned());
                self.watch(id);
                began.map(|created_at| (pid, created_at))
            }
            Err(error) => Err(error),
        };
        match began {
            Ok((pid, created_at)) => Ok(StartSandboxResponse {
                pid: pid.cast_unsigned(),
                created_at: MessageField::some(timestamp(created_at)),
                ..StartSandboxResponse::default()
            }),
            Err(error) => {
                sandbox.not_begun(id);
                // Fails if there is no pause process, which is fine.
                let _ = executor.end_pause().await;
                sandbox.unmake().await;
                Err(error)
            }
        }
    }

    /// Goes on watching a sandbox that the program before this one has handed over.
    pub fn watch_again(&self) {
        if let Some(id) = self.0.sandbox.awaited() {
            self.watch(&id);
        }
    }

    /// Records the end of the pause process, which is the end of the sandbox.
    fn watch(&self, id: &str) {
        let (service, id) = (self.0.clone(), id.to_owned());
        waits::begin(move || {
            let (service, id) = (service.clone(), id.clone());
            async move {
                // An error means that the shim itself is leaving.
                if let Ok(end) = service.executor.pause_ended().await {
                    service.sandbox.end(&id, Exit { status: end.code.cast_unsigned(), at: end.at });
                }
            }
        });
    }

    /// Ends the sandbox with all its members: with SIGKILL, or with SIGTERM if `grace` is not zero. If that is already
    /// under way, waits for it.
    async fn end(&self, id: &str, grace: Duration) -> Result<()> {
        let Service { sandbox, executor, containers, .. } = &self.0;
        let started = sandbox.stop(id)?;
        let signal = if grace.is_zero() { Signal::KILL } else { Signal::TERM };
        let members: Vec<TaskId> = containers.ids().iter().filter_map(|id| checked(id).ok()).collect();
        for member in &members {
            match executor.shutdown(member, Some(signal), Some(grace)).await {
                // The member has ended, or is not created yet: see `Service::create`.
                Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::WrongState) => return Err(error),
                _ => {}
            }
        }
        for member in &members {
            // A member that is gone has ended, or was never created.
            let exit = containers.process(member.as_str(), "", |init| init.exit.subscribe());
            if let Ok(mut exit) = exit {
                let _ = exit.wait_for(Option::is_some).await;
            }
        }
        let exit = match executor.end_pause().await {
            Ok(end) => Exit { status: end.code.cast_unsigned(), at: end.at },
            Err(error) if started && error.kind() != Kind::NotFound => return Err(error),
            Err(_) => Exit { status: 0, at: Timestamp::now() },
        };
        sandbox.unmake().await;
        sandbox.end(id, exit);
        Ok(())
    }

    /// Removes everything that is left after containerd's last call, and leaves.
    async fn over(&self, id: &str) -> Result<()> {
        let Service { sandbox, executor, containers, .. } = &self.0;
        // Without a sandbox the containers are nobody's members, and stay. A shim without either has nothing to lose.
        if sandbox.is_there() || !containers.is_empty() {
            self.end(id, Duration::ZERO).await?;
        }
        for member in containers.ids() {
            let Ok(task) = checked(&member) else { continue };
            match executor.remove(&task).await {
                Err(error) if error.kind() != Kind::NotFound => {
                    tracing::error!(%error, "a container of the sandbox is left behind");
                }
                _ => {
                    containers.remove(&member);
                    sandbox.forget(&member);
                }
            }
        }
        self.0.leave();
        Ok(())
    }
}

/// Begins a call of the Sandbox service.
///
/// # Errors
/// As [`call`].
pub fn sandbox(service: &Rc<Sandboxes>, method: &str, payload: &[u8]) -> Answer<Call> {
    match method {
        "CreateSandbox" => call(service, payload, Sandboxes::create_sandbox),
        "StartSandbox" => call(service, payload, Sandboxes::start_sandbox),
        "Platform" => call(service, payload, Sandboxes::platform),
        "StopSandbox" => call(service, payload, Sandboxes::stop_sandbox),
        "WaitSandbox" => wait(service, payload, Sandboxes::wait_sandbox),
        "SandboxStatus" => call(service, payload, Sandboxes::sandbox_status),
        "PingSandbox" => call(service, payload, Sandboxes::ping_sandbox),
        "ShutdownSandbox" => call(service, payload, Sandboxes::shutdown_sandbox),
        "SandboxMetrics" => call(service, payload, Sandboxes::sandbox_metrics),
        _ => Err(unknown_method(method)),
    }
}

impl Sandboxes {
    async fn create_sandbox(&self, request: CreateSandboxRequest) -> Answer<CreateSandboxResponse> {
        checked(&request.sandbox_id)?;
        let wanted = Wanted::of(&request, self.0.privileged);
        let created =
            wanted.and_then(|wanted| self.0.sandbox.create(&request.sandbox_id, request.bundle_path.into(), wanted));
        created.map(|()| CreateSandboxResponse::default()).map_err(|e| refused(&e))
    }

    async fn start_sandbox(&self, request: StartSandboxRequest) -> Answer<StartSandboxResponse> {
        let sandboxes = self.clone();
        seen_through(async move { sandboxes.begin(&request.sandbox_id).await.map_err(|e| refused(&e)) }).await
    }

    async fn platform(&self, _: PlatformRequest) -> Answer<PlatformResponse> {
        let platform =
            Platform { os: "linux".to_owned(), architecture: architecture().to_owned(), ..Platform::default() };
        Ok(PlatformResponse { platform: MessageField::some(platform), ..PlatformResponse::default() })
    }

    async fn stop_sandbox(&self, request: StopSandboxRequest) -> Answer<StopSandboxResponse> {
        let sandboxes = self.clone();
        seen_through(async move {
            let grace = Duration::from_secs(request.timeout_secs.into());
            let ended = sandboxes.end(&request.sandbox_id, grace).await;
            ended.map(|()| StopSandboxResponse::default()).map_err(|e| refused(&e))
        })
        .await
    }

    async fn wait_sandbox(&self, request: WaitSandboxRequest) -> Answer<WaitSandboxResponse> {
        let mut ended = self.0.sandbox.ended(&request.sandbox_id).map_err(|e| refused(&e))?;
        let exit = ended.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        let exit = exit.unwrap_or(Exit { status: KILLED.cast_unsigned(), at: Timestamp::now() });
        Ok(WaitSandboxResponse {
            exit_status: exit.status,
            exited_at: MessageField::some(timestamp(exit.at)),
            ..WaitSandboxResponse::default()
        })
    }

    async fn sandbox_status(&self, request: SandboxStatusRequest) -> Answer<SandboxStatusResponse> {
        let status = self.0.sandbox.status(&request.sandbox_id).map_err(|e| refused(&e))?;
        let info = if request.verbose { info(&status) } else { Default::default() };
        Ok(SandboxStatusResponse {
            sandbox_id: request.sandbox_id,
            pid: status.pid,
            state: if status.ready { READY } else { NOT_READY }.to_owned(),
            info: info.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            created_at: MessageField::some(timestamp(status.created_at)),
            exited_at: status.exit.map(|exit| timestamp(exit.at)).into(),
            ..SandboxStatusResponse::default()
        })
    }

    async fn ping_sandbox(&self, request: PingRequest) -> Answer<PingResponse> {
        let status = self.0.sandbox.status(&request.sandbox_id).map_err(|e| refused(&e))?;
        if !status.ready {
            let message = format!("sandbox {} is not ready", request.sandbox_id);
            return Err(refused(&Error::new(Kind::WrongState, message)));
        }
        Ok(PingResponse::default())
    }

    async fn shutdown_sandbox(&self, request: ShutdownSandboxRequest) -> Answer<ShutdownSandboxResponse> {
        let sandboxes = self.clone();
        seen_through(async move {
            let over = sandboxes.over(&request.sandbox_id).await;
            over.map(|()| ShutdownSandboxResponse::default()).map_err(|e| refused(&e))
        })
        .await
    }

    async fn sandbox_metrics(&self, request: SandboxMetricsRequest) -> Answer<SandboxMetricsResponse> {
        let status = self.0.sandbox.status(&request.sandbox_id).map_err(|e| refused(&e))?;
        let cgroup = status.cgroup.ok_or_else(|| {
            let message = format!("sandbox {} has no cgroup of its own", request.sandbox_id);
            refused(&Error::new(Kind::NotFound, message))
        })?;
        let stats = self.0.executor.cgroup_stats(&cgroup).map_err(|e| refused(&e))?;
        let mut response = SandboxMetricsResponse::default();
        let sent = response.metrics.mut_or_insert_default();
        sent.timestamp = MessageField::some(timestamp(Timestamp::now()));
        sent.id = request.sandbox_id;
        sent.data = MessageField::some(metrics::of(&stats).map_err(|e| refused(&e))?);
        Ok(response)
    }
}

/// The architecture of this machine, as Go and images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        other => other,
    }
}
