//! Chooses the text format by the `Accept` header of a request (RFC 9110, 12.5.1).
//!
//! A client that names OpenMetrics and does not prefer text gets OpenMetrics. Every other client gets Prometheus' text,
//! even one that accepts neither: a scrape is better than none.

use super::text::Form;

/// The format for an `Accept` header, if there is one.
pub fn form(accept: Option<&str>) -> Form {
    let (mut open, mut text) = (0, 0);
    for range in accept.into_iter().flat_map(|accept| accept.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let value = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim().trim_matches('"'))
        };
        let quality = value("q").map_or(Some(1000), thousandths).unwrap_or(0);
        match media.as_str() {
            "application/openmetrics-text" if matches!(value("version"), None | Some("1.0.0" | "0.0.1")) => {
                open = open.max(quality);
            }
            "text/plain" | "text/*" | "*/*" => text = text.max(quality),
            _ => {}
        }
    }
    if open > 0 && open >= text { Form::OpenMetrics } else { Form::Text }
}

/// Parses a quality value: 0 to 1 with up to three digits.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let thousandths: u32 = format!("{part:0<3}").parse().ok()?;
    match whole {
        "0" => Some(thousandths),
        "1" if thousandths == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_openmetrics_and_prefers_nothing_gets_it() {
        // The headers of Prometheus 2 and 3.
        for accept in [
            "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "application/openmetrics-text",
            "text/plain, Application/OpenMetrics-Text; Version=\"1.0.0\"",
        ] {
            assert_eq!(form(Some(accept)), Form::OpenMetrics, "{accept}");
        }
    }

    #[test]
    fn everybody_else_gets_text() {
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/html",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.2,text/plain;q=0.3",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=x",
            "application/openmetrics-text;q=1.5",
            ",;=,;;q=,\u{1}",
        ] {
            assert_eq!(form(Some(accept)), Form::Text, "{accept}");
        }
        assert_eq!(form(None), Form::Text);
    }
}
