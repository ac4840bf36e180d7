//! The examples at the end of each command's help and man page.
//!
//! A test parses every line. Must not: be wider than 80 columns.

pub const BOWLINE: &str = "\
Examples:
  bowline run --rm echo hello
  bowline run --rm --memory 64M --cpus 0.5 --timeout 1m python3 job.py
  bowline start --name web -f web.toml
  bowline explain web";

pub const RUN: &str = "\
Examples:
  bowline run --rm echo hello
  bowline run --rm --memory 64M --pids 32 --timeout 10s sh -c 'make test'
  bowline run --rm --untrusted --json python3 script.py
  bowline run --rm --rootfs /srv/debian --ephemeral apt-get install -y jq
  bowline run --rm --secret /etc/token sh -c 'login </run/secrets/token'
  bowline run --rm --bundle /srv/job --entrypoint sh -- -c 'ls /'
  bowline run --rm -it bash";

pub const START: &str = "\
Examples:
  bowline start --name web --memory 64M busybox httpd -f -p 8080
  bowline start -f web.toml --cpus 0.5";

pub const ATTACH: &str = "\
Examples:
  bowline attach web
  bowline attach web --no-stdin";

pub const EXEC: &str = "\
Examples:
  bowline exec web ps
  bowline exec -it web sh
  bowline exec --timeout 2s web test -e /tmp/ready";

pub const STOP: &str = "\
Examples:
  bowline stop web
  bowline stop --signal INT --grace 30s web db
  bowline stop --label tier=web";

pub const KILL: &str = "\
Examples:
  bowline kill web
  bowline kill --signal HUP web db";

pub const WAIT: &str = "\
Examples:
  bowline wait job
  bowline wait --json job
  bowline wait --timeout 30s job";

pub const INSPECT: &str = "\
Examples:
  bowline inspect web
  bowline inspect web --format '{{ status }} {{ pid }}'";

pub const PS: &str = "\
Examples:
  bowline ps
  bowline ps --filter status=running --filter label=tier=web
  bowline ps -q --sort created
  bowline ps --format '{{.Names}} {{.Status}}'";

pub const LOGS: &str = "\
Examples:
  bowline logs --follow web
  bowline logs --since 10m --tail 100 --timestamps web
  bowline logs --follow --grep 'error|warn' web db";

pub const STATS: &str = "\
Examples:
  bowline stats
  bowline stats --watch --sort memory web db
  bowline stats --record run.jsonl --plot run.svg --for 1m web";

pub const TOP: &str = "\
Examples:
  bowline top
  bowline top --once --sort memory web";

pub const UPDATE: &str = "\
Examples:
  bowline update web --memory 128M --cpus 1
  bowline update web --pids max";

pub const EVENTS: &str = "\
Examples:
  bowline events --follow
  bowline events --since 1h --json web";

pub const EXPLAIN: &str = "\
Examples:
  bowline explain web
  bowline explain --json web";

pub const METRICS: &str = "\
Examples:
  bowline metrics --listen 127.0.0.1:9464
  bowline metrics --once";

pub const PAUSE: &str = "\
Examples:
  bowline pause web
  bowline pause web db";

pub const ADOPT: &str = "\
Examples:
  bowline adopt web
  bowline adopt --all";

pub const UPGRADE: &str = "\
Examples:
  bowline upgrade web
  bowline upgrade --all --dry-run
  bowline upgrade --all
  bowline upgrade --containerd";

pub const RESUME: &str = "\
Examples:
  bowline resume web
  bowline resume web db";

pub const RM: &str = "\
Examples:
  bowline rm job
  bowline rm -f web db
  bowline rm --exited
  bowline rm -f --label tier=web";

pub const GC: &str = "\
Examples:
  bowline gc --dry-run
  bowline gc --pods-root kubepods --alive pods.txt";

pub const SPEC: &str = "\
Examples:
  bowline spec web.toml
  bowline spec - < web.toml";

pub const SCHEMA: &str = "\
Examples:
  bowline schema > task.schema.json
  bowline schema --sandbox";

pub const DOCTOR: &str = "\
Examples:
  bowline doctor
  bowline doctor --json";

pub const COMPLETIONS: &str = "\
Examples:
  bowline completions bash > /etc/bash_completion.d/bowline
  bowline completions zsh > /usr/local/share/zsh/site-functions/_bowline
  bowline completions fish > /etc/fish/completions/bowline.fish";

pub const SANDBOX: &str = "\
Examples:
  bowline sandbox create --name shop --memory 256M --cpus 1
  bowline start --name api --sandbox shop busybox httpd -f -p 8080
  bowline sandbox rm -f shop";

pub const SANDBOX_CREATE: &str = "\
Examples:
  bowline sandbox create --name shop --memory 256M --cpus 1
  bowline sandbox create -f shop.toml -p 8080:80";

pub const SANDBOX_LS: &str = "\
Examples:
  bowline sandbox ls
  bowline sandbox ls -q";

pub const SANDBOX_INSPECT: &str = "\
Examples:
  bowline sandbox inspect shop";

pub const SANDBOX_STATS: &str = "\
Examples:
  bowline sandbox stats shop
  bowline sandbox stats --json shop";

pub const SANDBOX_UPDATE: &str = "\
Examples:
  bowline sandbox update shop --memory 512M --cpus 2";

pub const SANDBOX_CHECK: &str = "\
Examples:
  bowline sandbox check shop";

pub const SANDBOX_CHARGE: &str = "\
Examples:
  bowline sandbox charge shop 4711 4712";

pub const SANDBOX_RM: &str = "\
Examples:
  bowline sandbox rm shop
  bowline sandbox rm -f shop";

pub const CGROUP: &str = "\
Examples:
  bowline cgroup ensure /batch/jobs
  bowline cgroup set /batch/jobs --cpus 0.5 --memory 64M
  bowline cgroup destroy /batch";

pub const CGROUP_EXISTS: &str = "\
Examples:
  bowline cgroup exists /batch/jobs";

pub const CGROUP_ENSURE: &str = "\
Examples:
  bowline cgroup ensure /batch/jobs
  bowline cgroup ensure /batch/threads --threaded";

pub const CGROUP_USAGE: &str = "\
Examples:
  bowline cgroup usage /batch/jobs --json";

pub const CGROUP_SHOW: &str = "\
Examples:
  bowline cgroup show /batch/jobs";

pub const CGROUP_SET: &str = "\
Examples:
  bowline cgroup set /batch/jobs --cpus 0.5 --memory 64M --pids 64
  bowline cgroup set /batch/jobs --memory max";

pub const CGROUP_REDUCE_CPU: &str = "\
Examples:
  bowline cgroup reduce-cpu /batch/jobs";

pub const CGROUP_KILL: &str = "\
Examples:
  bowline cgroup kill /batch/jobs";

pub const CGROUP_DESTROY: &str = "\
Examples:
  bowline cgroup destroy /batch --json";

pub const CGROUP_PLACE: &str = "\
Examples:
  bowline cgroup place /batch/threads --tid 4711 4712";

pub const CGROUP_NAME: &str = "\
Examples:
  bowline cgroup name --pod 6c1a4e95-6bb6 --qos burstable --driver systemd
  bowline cgroup name kubepods-burstable-pod6c1a4e95_6bb6.slice";

pub const LIMITS: &str = "\
Examples:
  bowline limits apply --dry-run limits.json
  bowline limits apply limits.json
  bowline limits reset";

pub const LIMITS_APPLY: &str = "\
Examples:
  bowline limits apply --dry-run limits.json
  bowline limits apply limits.json";

pub const LIMITS_RESET: &str = "\
Examples:
  bowline limits reset --dry-run
  bowline limits reset limits.json";

pub const LIMITS_SHOW: &str = "\
Examples:
  bowline limits show
  bowline limits show limits.json --json";

pub const LIMITS_TRACK: &str = "\
Examples:
  bowline limits track ssh.service
  bowline limits track";

pub const LIMITS_UNTRACK: &str = "\
Examples:
  bowline limits untrack ssh.service";

#[cfg(test)]
mod tests {
    use clap::{Command, Parser as _};

    use crate::input::args::Cli;

    /// All commands that help lists, at every level.
    fn listed(command: &Command) -> Vec<Command> {
        let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
        std::iter::once(command.clone()).chain(below.flat_map(listed)).collect()
    }

    /// The words of a line up to a redirection, as a shell reads them. Only single quotes are known.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().expect("one").push(c),
            }
        }
        let redirected = words.iter().position(|word| [">", "<"].contains(&word.as_str()));
        words.truncate(redirected.unwrap_or(words.len()));
        words
    }

    #[test]
    fn every_command_has_examples_which_it_takes() {
        for command in listed(&Cli::whole()) {
            let name = command.get_name();
            let text = command.get_after_help().unwrap_or_else(|| panic!("{name} has no examples")).to_string();
            let lines: Vec<&str> = text.strip_prefix("Examples:\n").expect("the heading").lines().collect();
            for line in lines {
                assert!(line.starts_with("  bowline ") && line.chars().count() <= 80, "{name}: {line}");
                if let Err(error) = Cli::try_parse_from(words(line.trim_start())) {
                    panic!("{line}: {error}");
                }
            }
        }
    }
}
