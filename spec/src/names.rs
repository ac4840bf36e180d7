//! The files by which programs resolve names: hosts(5) and resolv.conf(5), as text.

use std::fmt::{Display, Write as _};
use std::net::IpAddr;

/// Where a task reads its host name.
pub const HOSTNAME: &str = "/etc/hostname";
/// Where programs look for names before they ask a server.
pub const HOSTS: &str = "/etc/hosts";
/// Where programs look for the addresses of name servers.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// What a network of its own has in hosts(5) at least, as Docker writes it.
pub const LOCALHOST: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::\tip6-localnet\n\
                             ff00::\tip6-mcastprefix\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n";

/// A line of hosts(5).
pub fn host_line(address: impl Display, name: &str) -> String {
    format!("{address}\t{name}\n")
}

/// The line of a task's own name, which has a short form too where it has a domain.
pub fn own_line(address: impl Display, name: &str) -> String {
    match name.split_once('.') {
        Some((short, domain)) if !short.is_empty() && !domain.is_empty() => format!("{address}\t{name} {short}\n"),
        _ => host_line(address, name),
    }
}

/// The text of resolv.conf(5).
pub fn resolv_conf<S: Display>(servers: &[S], search: &[String], options: &[String]) -> String {
    let mut text = String::new();
    for server in servers {
        // Writing to a string never fails.
        let _ = writeln!(text, "nameserver {server}");
    }
    for (word, values) in [("search", search), ("options", options)] {
        if !values.is_empty() {
            let _ = writeln!(text, "{word} {}", values.join(" "));
        }
    }
    text
}

/// Whether every server of a resolv.conf(5) is on the loopback interface.
pub fn names_loopback_alone(text: &str) -> bool {
    let lines = text.lines().map(str::split_whitespace);
    let mut servers = lines.filter_map(|mut words| words.next().filter(|word| *word == "nameserver").and(words.next()));
    servers.next().is_some_and(is_loopback) && servers.all(is_loopback)
}

/// Whether the address of a server is on the loopback interface.
pub fn is_loopback(server: &str) -> bool {
    server.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_the_loopback_interface_are_recognized() {
        for stub in
            ["nameserver 127.0.0.53\noptions edns0", "# a stub\nsearch .\n nameserver\t::1\nnameserver 127.0.0.1"]
        {
            assert!(names_loopback_alone(stub), "{stub:?}");
        }
        let mixed = "nameserver 127.0.0.53\nnameserver 192.0.2.53";
        for other in ["", "search .", "nameserver", "#nameserver 127.0.0.53", "nameserver fe80::1%eth0", mixed] {
            assert!(!names_loopback_alone(other), "{other:?}");
        }
    }

    #[test]
    fn a_name_with_a_domain_has_a_short_form() {
        assert_eq!(own_line("::1", "web"), "::1\tweb\n");
        assert_eq!(own_line("::1", "web.example.org"), "::1\tweb.example.org web\n");
        assert_eq!(host_line("::1", "web.example.org"), "::1\tweb.example.org\n");
    }
}
