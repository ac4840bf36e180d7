//! How a task resolves names: no text may end its line, or its word, in the file that it is written into.

use super::rules::require;
use crate::invalid::Invalid;
use crate::task::{Names, Task, is_name};

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    let Names { files, hosts, search, options, .. } = &task.names;
    let has_more = !hosts.is_empty() || task.names.has_resolver();
    require(*files != Some(false) || !has_more, "names.files", || {
        "is false, and names says what the files have".into()
    })?;
    for (index, domain) in search.iter().enumerate() {
        let field = format!("names.search[{index}]");
        require(is_name(domain), &field, || format!("{domain:?} is not a domain"))?;
    }
    for (index, option) in options.iter().enumerate() {
        let is_word = !option.is_empty() && option.bytes().all(|byte| byte.is_ascii_graphic());
        let field = format!("names.options[{index}]");
        require(is_word, &field, || format!("{option:?} is not an option of resolv.conf, such as ndots:2"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};

    #[test]
    fn nothing_ends_its_line_in_a_file() {
        accepted("names = {hosts = ['a:1.2.3.4', 'a:::1'], servers = ['::1'], search = ['.'], options = ['ndots:2']}");
        accepted("names.files = false");
        refused("names = {files = false, servers = ['1.2.3.4']}", "names.files", "false");
        refused("names.search = ['a', \"b\\nnameserver 1.2.3.4\"]", "names.search[1]", "not a domain");
        refused("names.options = ['a b']", "names.options[0]", "not an option");
        refused("names.hosts = ['a']", "names.hosts[0]", "such as");
        refused("names.servers = ['127.0.0.53 ']", "names.servers[0]", "");
    }
}
