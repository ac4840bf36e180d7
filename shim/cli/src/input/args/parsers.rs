//! Parsers of values that flags of several commands take.

use bowline_spec::budget::Class;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// The heading of limits in a help.
pub const LIMITS: &str = "Limits";

/// A parser of `words`, as a description would contain them.
pub fn one_of<T, const N: usize>(words: [&'static str; N]) -> impl TypedValueParser<Value = T>
where
    T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(word.into()))
}

/// Parses an absolute path.
pub fn absolute(text: &str) -> Result<String, String> {
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err(format!("{text:?} is not an absolute path")) }
}

/// Parses a whole number.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number from 0 on, such as 3"))
}

/// A parser of classes of service, which the kubelet writes otherwise too: BestEffort, besteffort.
pub fn class() -> impl TypedValueParser<Value = Class> {
    let words = [
        PossibleValue::new("guaranteed").alias("Guaranteed"),
        PossibleValue::new("burstable").alias("Burstable"),
        PossibleValue::new("best-effort").aliases(["BestEffort", "besteffort"]),
    ];
    PossibleValuesParser::new(words).map(|word| match word.to_ascii_lowercase().as_str() {
        "guaranteed" => Class::Guaranteed,
        "burstable" => Class::Burstable,
        _ => Class::BestEffort,
    })
}

/// Parses `KEY=value`.
pub fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=value")),
    }
}
