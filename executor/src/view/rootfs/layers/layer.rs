//! What one mount of a root is to be.

/// One mount, as a manager describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Layer {
    /// The filesystem's type; `bind` for a bind. With `format/` or `mkdir/` before it, this one is built on those before it.
    pub kind: String,
    /// The device, folder or name that is mounted, as in mount(2).
    pub source: String,
    /// Where it is mounted inside the root; empty for the root itself.
    pub target: String,
    /// The mount options, as in fstab(5).
    pub options: Vec<String>,
}

/// What errors call it.
pub(super) fn named(layer: &Layer) -> String {
    format!("mount {} of type {} at {:?}", layer.source, layer.kind, layer.target)
}
