//! A connection to systemd over the system bus: calls, their answers, jobs and signals.
//!
//! The bus address is `DBUS_SYSTEM_BUS_ADDRESS` or the usual one. systemd's private socket is never used, because
//! systemd may change it at will.
//!
//! Every wait has one of the timeouts below.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bowline_executor::internal::Unit;
use bowline_executor::systemd::{Property, Value};
use bowline_executor::{Doing as _, Error, Kind, Result};
use tokio::time::{Instant, timeout_at};
use zbus::connection::Builder;
use zbus::export::futures_core::Stream as _;
use zbus::message::Type;
use zbus::{Connection, DynamicType, MatchRule, Message, MessageStream, ObjectPath, OwnedObjectPath, Variant};

/// Timeout for connecting to the bus.
const CONNECT: Duration = Duration::from_secs(5);

/// Timeout for one answer of systemd, which gives none during a reload.
const ANSWER: Duration = Duration::from_secs(20);

/// Timeout for a job, which may have to wait for other jobs.
const JOB: Duration = Duration::from_secs(30);

/// Timeout for systemd to unload a unit that has ended.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// How often to ask the bus whether systemd is back on it.
const BACK: Duration = Duration::from_millis(100);

/// How many unread signals a stream keeps.
const QUEUED: std::num::NonZeroUsize = std::num::NonZeroUsize::new(1024).expect("not zero");

const ADDRESS: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const USUAL: &str = "unix:path=/run/dbus/system_bus_socket";
pub const SYSTEMD: &str = "org.freedesktop.systemd1";
pub const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const OBJECT: &str = "/org/freedesktop/systemd1";
pub const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_REPLY: &str = "org.freedesktop.DBus.Error.NoReply";
pub const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// Why systemd or the bus did not carry out a call.
pub enum Refusal {
    /// The D-Bus error name, and its text.
    Named(String, String),
    Other(Error),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Other(error) => error,
            Refusal::Named(name, text) => {
                let kind = match name.strip_prefix("org.freedesktop.").unwrap_or_default() {
                    "systemd1.UnitExists" => Kind::AlreadyExists,
                    "systemd1.NoSuchUnit" => Kind::NotFound,
                    "DBus.Error.InvalidArgs" | "DBus.Error.PropertyReadOnly" | "systemd1.BadUnitSetting" => {
                        Kind::BadSpec
                    }
                    "DBus.Error.AccessDenied"
                    | "DBus.Error.InteractiveAuthorizationRequired"
                    | "DBus.Error.ServiceUnknown"
                    | "DBus.Error.NameHasNoOwner"
                    | "DBus.Error.Spawn.ServiceNotFound" => Kind::Unsupported,
                    "DBus.Error.NoReply" | "DBus.Error.Timeout" => Kind::Unavailable,
                    _ => Kind::Internal,
                };
                Error::new(kind, format!("systemd refused: {name}: {}", plain(&text)))
            }
        }
    }
}

impl From<zbus::Error> for Refusal {
    fn from(error: zbus::Error) -> Refusal {
        match &error {
            zbus::Error::MethodError(name, text, _) => {
                Refusal::Named(name.to_string(), text.clone().unwrap_or_default())
            }
            zbus::Error::FDO(fdo) => {
                use zbus::DBusError as _;
                Refusal::Named(fdo.name().to_string(), fdo.description().unwrap_or_default().to_owned())
            }
            _ => Refusal::Other(Error::new(
                Kind::Internal,
                format!("the system bus failed: {}", plain(&error.to_string())),
            )),
        }
    }
}

/// Turns foreign text into part of one log line: replaces control characters, drops the final full stop.
pub fn plain(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().trim_end_matches('.').to_owned()
}

/// A connection to systemd, for one request.
pub struct Systemd {
    connection: Connection,
}

pub struct Answer(pub Message);

/// systemd's signals, received from before the first call.
pub struct Signals {
    jobs: MessageStream,
    units: MessageStream,
}

/// A job in progress and the bus name of its owner: any process can send signals on the bus.
pub struct Job {
    path: OwnedObjectPath,
    of: Option<String>,
}

impl Answer {
    pub fn job(&self) -> Result<Job> {
        let path = self.0.body().deserialize().doing(Kind::Internal, || "systemd answered without a job")?;
        Ok(Job { path, of: sender(&self.0) })
    }

    fn path(&self) -> Result<OwnedObjectPath> {
        self.0.body().deserialize().doing(Kind::Internal, || "systemd answered without a unit")
    }
}

fn sender(message: &Message) -> Option<String> {
    message.header().sender().map(ToString::to_string)
}

impl Systemd {
    pub async fn connect() -> Result<Systemd> {
        let asked = std::env::var(ADDRESS).ok().filter(|address| !address.is_empty());
        let address = asked.unwrap_or_else(|| USUAL.to_owned());
        let hint = "the cgroup driver cgroupfs needs no systemd; `systemctl status dbus` shows the state of the bus";
        let what = || format!("cannot reach systemd by the bus at {address}");
        let connecting = Builder::address(address.as_str()).build();
        match tokio::time::timeout(CONNECT, connecting).await {
            Ok(Ok(connection)) => Ok(Systemd { connection }),
            Ok(Err(error)) => {
                Err(Error::new(Kind::Unsupported, format!("{}: {}", what(), plain(&error.to_string()))).hint(hint))
            }
            Err(_) => {
                let late = format!("{}: it did not answer within {CONNECT:?}", what());
                Err(Error::new(Kind::Unavailable, late).hint(hint))
            }
        }
    }

    /// Subscribes to systemd's signals about jobs and units.
    pub async fn subscribe(&self) -> Result<Signals> {
        let jobs = self.signals("JobRemoved");
        let jobs = bounded("the bus", ANSWER, jobs).await?;
        let units = bounded("the bus", ANSWER, self.signals("UnitRemoved")).await?;
        self.call("Subscribe", &()).await?;
        Ok(Signals { jobs, units })
    }

    async fn signals(&self, member: &str) -> std::result::Result<MessageStream, Refusal> {
        let rule = MatchRule::builder().msg_type(Type::Signal).interface(MANAGER).member(member).path(OBJECT);
        Ok(MessageStream::for_match_rule(rule.build()?, &self.connection, Some(QUEUED)).await?)
    }

    pub async fn call<B>(&self, method: &str, body: &B) -> std::result::Result<Answer, Refusal>
    where
        B: serde::Serialize + DynamicType,
    {
        self.ask(OBJECT, MANAGER, method, body).await
    }

    /// Calls a systemd method. systemd leaves the bus while it re-executes itself, and calls made meanwhile get no
    /// reply; such a call is repeated once.
    pub async fn ask<B>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> std::result::Result<Answer, Refusal>
    where
        B: serde::Serialize + DynamicType,
    {
        let once = || {
            let call = async {
                let answer = self.connection.call_method(Some(SYSTEMD), path, Some(interface), method, body).await;
                Ok(Answer(answer?))
            };
            bounded_refusal("systemd", ANSWER, call)
        };
        match once().await {
            Err(Refusal::Named(name, _)) if name == NO_REPLY => {
                self.come_back().await;
                once().await
            }
            answer => answer,
        }
    }

    /// Waits until systemd is back on the bus, at most as long as for an answer.
    async fn come_back(&self) {
        const BUS: &str = "org.freedesktop.DBus";
        let back = async {
            loop {
                let asked = self.connection.call_method(
                    Some(BUS),
                    "/org/freedesktop/DBus",
                    Some(BUS),
                    "NameHasOwner",
                    &(SYSTEMD,),
                );
                match asked.await.map(|answer| answer.body().deserialize::<bool>()) {
                    Ok(Ok(false)) => tokio::time::sleep(BACK).await,
                    // On any other answer, the next call reports what is wrong.
                    _ => return,
                }
            }
        };
        let _ = tokio::time::timeout(ANSWER, back).await;
    }

    /// Whether `unit` exists and contains process `pid`.
    pub async fn has_in(&self, unit: &str, pid: u32) -> bool {
        let (Ok(unit), Ok(of_pid)) = (self.call("GetUnit", &(unit,)).await, self.call("GetUnitByPID", &(pid,)).await)
        else {
            return false;
        };
        unit.path().is_ok_and(|unit| of_pid.path().is_ok_and(|other| other == unit))
    }

    /// How far the unit is in its life (its ActiveState); `None` where there is no such unit.
    pub async fn state(&self, unit: &str) -> Result<Option<String>> {
        let path = match self.call("GetUnit", &(unit,)).await {
            Err(Refusal::Named(name, _)) if name == NO_SUCH_UNIT => return Ok(None),
            answer => answer?.path()?,
        };
        let answer = self.ask(path.as_str(), PROPERTIES, "Get", &(UNIT, "ActiveState")).await?;
        let state = answer.0.body().deserialize::<Variant<'_>>().ok().and_then(|text| String::try_from(text).ok());
        Ok(state)
    }

    /// Those of `properties` that this version of systemd takes. Whoever wants the others writes their files.
    pub async fn known(&self, properties: &[Property]) -> Result<Vec<Property>> {
        if properties.iter().all(|property| property.since().is_none()) {
            return Ok(properties.to_vec());
        }
        let answer = self.ask(OBJECT, PROPERTIES, "Get", &(MANAGER, "Version")).await?;
        let text = answer.0.body().deserialize::<Variant<'_>>().ok().and_then(|text| String::try_from(text).ok());
        let version = text.as_deref().and_then(version);
        let known = |property: &&Property| property.since().is_none_or(|since| version.is_none_or(|is| is >= since));
        Ok(properties.iter().filter(known).cloned().collect())
    }

    /// Whether the unit exists, running or not.
    pub async fn knows(&self, unit: &str) -> Result<bool> {
        match self.call("GetUnit", &(unit,)).await {
            Ok(_) => Ok(true),
            Err(Refusal::Named(name, _)) if name == NO_SUCH_UNIT => Ok(false),
            Err(refusal) => Err(refusal.into()),
        }
    }

    pub async fn start_unit(
        &self,
        unit: &Unit,
        pid: u32,
        properties: &[Property],
        slices: &[String],
    ) -> std::result::Result<Job, Refusal> {
        let mut all: Vec<(&str, Variant<'_>)> = vec![
            ("Description", Variant::from("bowline task")),
            // As runc does: whoever manages the task stops it when the host shuts down.
            ("DefaultDependencies", Variant::from(false)),
            ("CPUAccounting", Variant::from(true)),
            ("MemoryAccounting", Variant::from(true)),
            ("IOAccounting", Variant::from(true)),
            ("TasksAccounting", Variant::from(true)),
        ];
        if !unit.is_slice() {
            all.push(("Slice", Variant::from(unit.slice.as_str())));
            all.push(("Delegate", Variant::from(true)));
            // systemd also unloads a failed unit by itself, for example after an OOM kill.
            all.push(("CollectMode", Variant::from("inactive-or-failed")));
            all.push(("PIDs", Variant::from(vec![pid])));
        }
        all.extend(values(properties));
        let slice = |name: &String| {
            let properties = vec![
                ("Description", Variant::from("bowline tasks")),
                ("DefaultDependencies", Variant::from(false)),
                ("StopWhenUnneeded", Variant::from(true)),
            ];
            (name.clone(), properties)
        };
        let slices: Vec<(String, Vec<(&str, Variant<'_>)>)> = slices.iter().map(slice).collect();
        let answer = self.call("StartTransientUnit", &(&unit.name, "replace", all, slices)).await?;
        answer.job().map_err(Refusal::Other)
    }

    /// Waits until a job has finished.
    pub async fn finished(&self, signals: &mut Signals, job: Job) -> Result<()> {
        let by = Instant::now() + JOB;
        loop {
            let message = match timeout_at(by, next(&mut signals.jobs)).await {
                Ok(message) => message?,
                Err(_) => {
                    return Err(Error::new(Kind::Unavailable, format!("systemd has not done it within {JOB:?}"))
                        .hint("`systemctl list-jobs` shows what it waits for"));
                }
            };
            let body = message.body();
            let Ok((_, path, _, result)) = body.deserialize::<(u32, ObjectPath<'_>, &str, &str)>() else {
                continue;
            };
            if path != *job.path || sender(&message) != job.of {
                continue;
            }
            if result == "done" {
                return Ok(());
            }
            return Err(Error::new(Kind::Internal, format!("systemd's job ended as {result:?}"))
                .hint("`journalctl -b _PID=1` tells why"));
        }
    }

    /// Until when it is waited for that systemd unloads a unit which ends now.
    pub fn forgets_by() -> Instant {
        Instant::now() + FORGOTTEN
    }

    /// Waits until systemd has unloaded a unit that has ended.
    pub async fn forgotten(&self, signals: &mut Signals, unit: &str, by: Instant) {
        while let Ok(Ok(message)) = timeout_at(by, next(&mut signals.units)).await {
            let is = message.body().deserialize::<(&str, ObjectPath<'_>)>().is_ok_and(|(name, _)| name == unit);
            if is {
                return;
            }
        }
    }
}

async fn next(stream: &mut MessageStream) -> Result<Message> {
    let message = poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await;
    let message = message.ok_or_else(|| Error::new(Kind::Internal, "the system bus has closed the connection"))?;
    message.doing(Kind::Internal, || "the system bus failed")
}

async fn bounded_refusal<T>(
    who: &str,
    most: Duration,
    call: impl Future<Output = std::result::Result<T, Refusal>>,
) -> std::result::Result<T, Refusal> {
    let late = |_| Refusal::Other(Error::new(Kind::Unavailable, format!("{who} did not answer within {most:?}")));
    tokio::time::timeout(most, call).await.map_err(late)?
}

async fn bounded<T>(
    who: &str,
    most: Duration,
    call: impl Future<Output = std::result::Result<T, Refusal>>,
) -> Result<T> {
    Ok(bounded_refusal(who, most, call).await?)
}

/// The number at the beginning of a version such as `252.39-1~deb12u1`.
fn version(text: &str) -> Option<u32> {
    let digits = text.trim_start_matches('v');
    digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
}

/// Converts properties to D-Bus values.
pub fn values(properties: &[Property]) -> Vec<(&str, Variant<'_>)> {
    properties.iter().map(|property| (property.name.as_str(), variant(&property.value))).collect()
}

fn variant(value: &Value) -> Variant<'_> {
    match value {
        Value::Flag(flag) => Variant::from(*flag),
        Value::Number(number) => Variant::from(*number),
        Value::Small(number) => Variant::from(*number),
        Value::Signed(number) => Variant::from(*number),
        Value::Text(text) => Variant::from(text.as_str()),
        Value::Words(words) => Variant::from(words.clone()),
        Value::Set(bits) => Variant::from(bits.clone()),
        Value::Devices(devices) => Variant::from(devices.clone()),
        Value::Rules(rules) => Variant::from(rules.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_first_number() {
        assert_eq!(["252.39-1~deb12u1", "v257", "258", "devel"].map(version), [Some(252), Some(257), Some(258), None]);
    }

    #[test]
    fn what_others_say_is_one_line() {
        assert_eq!(plain("Unknown command: HTTP\r\n\u{1b}[31m."), "Unknown command: HTTP   [31m");
    }
}
