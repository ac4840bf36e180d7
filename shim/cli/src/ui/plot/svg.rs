//! Writes the few SVG elements that a picture needs, as text.
//!
//! Every text and every attribute value is escaped here, and nowhere else.

use std::fmt::Write as _;

/// The picture's style sheet. The colours can be told apart by people with colour blindness (after Okabe and Ito).
const STYLE: &str = "\
text{font:11px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#333}\
.title{font-size:17px;font-weight:600;fill:#111}.small{fill:#666}.head{font-weight:600}\
.tick{fill:#666}.middle{text-anchor:middle}.right{text-anchor:end}\
.grid{stroke:#e7e7e7}.time{stroke:#f0f0f0}.frame{stroke:#999}\
.curve{fill:none;stroke-width:1.6;stroke-linejoin:round}.area{opacity:.16}\
.blue{stroke:#0072b2;color:#0072b2}.area.blue{fill:#0072b2;stroke:none}\
.green{stroke:#009e73}.purple{stroke:#cc79a7;stroke-dasharray:2 2}\
.limit{stroke:#d55e00;stroke-dasharray:7 4}.high{stroke:#e69f00;stroke-dasharray:3 3}\
.band{fill:#e69f00}.dot{fill:#0072b2}\
line.mark{stroke:#888;opacity:.75}line.mark.bad{stroke:#d55e00}\
text.mark,text.head{paint-order:stroke;stroke:#fff;stroke-width:3px}\
text.mark{fill:#444}text.mark.bad{fill:#b34d00;font-weight:600}\
text.limit,text.high,text.purple{stroke:none}text.limit{fill:#b34d00}text.high{fill:#8a6000}text.purple{fill:#a0527f}";

/// An SVG picture that is being written.
pub struct Svg(String);

/// A position, in pixels from the left and from the top.
pub type At = (f64, f64);

impl Svg {
    /// Starts an empty picture of this size. The file starts with `begin`.
    pub fn begin(begin: &str, width: f64, height: f64, title: &str) -> Svg {
        let (width, height) = (number(width), number(height));
        let mut svg = Svg(format!(
            "{begin}xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n"
        ));
        svg.push(&format!("<title>{}</title>", escaped(title)));
        svg.push(&format!("<style>{STYLE}</style>"));
        svg.push(&format!("<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"));
        svg
    }

    fn push(&mut self, element: &str) {
        self.0.push_str(element);
        self.0.push('\n');
    }

    /// Draws a line with additional attributes.
    pub fn line(&mut self, class: &str, from: At, to: At, more: &[(&str, &str)]) {
        let element = line(class, from, to, more);
        self.push(&format!("{element}/>"));
    }

    /// Draws a line that shows `title` as a tooltip.
    pub fn told_line(&mut self, class: &str, from: At, to: At, more: &[(&str, &str)], title: &str) {
        let element = line(class, from, to, more);
        self.push(&format!("{element}><title>{}</title></line>", escaped(title)));
    }

    /// Writes a text that begins at `at`, unless its class aligns it otherwise.
    pub fn text(&mut self, at: At, class: &str, text: &str) {
        let (x, y) = (number(at.0), number(at.1));
        self.push(&format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escaped(text)));
    }

    /// Draws a path from its SVG commands.
    pub fn path(&mut self, class: &str, commands: &str) {
        if !commands.is_empty() {
            self.push(&format!("<path class=\"{class}\" d=\"{commands}\"/>"));
        }
    }

    /// Draws a filled rectangle with this opacity.
    pub fn rectangle(&mut self, class: &str, from: At, to: At, opacity: f64) {
        let (x, y, width, height) = (number(from.0), number(from.1), number(to.0 - from.0), number(to.1 - from.1));
        let opacity = number(opacity);
        self.push(&format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" opacity=\"{opacity}\"/>"
        ));
    }

    pub fn dot(&mut self, class: &str, at: At) {
        self.push(&format!("<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"3\"/>", number(at.0), number(at.1)));
    }

    pub fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn line(class: &str, from: At, to: At, more: &[(&str, &str)]) -> String {
    let places = [("x1", from.0), ("y1", from.1), ("x2", to.0), ("y2", to.1)];
    let mut element = format!("<line class=\"{class}\"");
    for (name, place) in places {
        let _ = write!(element, " {name}=\"{}\"", number(place));
    }
    for (name, value) in more {
        let _ = write!(element, " {name}=\"{}\"", escaped(value));
    }
    element
}

/// Formats a coordinate to a hundredth of a pixel, without trailing zeros.
pub fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Escapes `text` for an XML element or attribute. Replaces characters that XML does not allow, such as most control
/// characters, and turns line breaks into spaces.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_whitespace() => out.push(' '),
            c if c.is_control() || is_no_text(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Whether `c` changes the order of the text around it, or is no character.
fn is_no_text(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
}
