//! Which fields stay out of what is serialised.

/// Whether `value` is what a field is that nobody has written.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
