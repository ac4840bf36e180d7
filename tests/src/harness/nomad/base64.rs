//! Bytes in protobuf's JSON.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as base64, with padding.
pub fn encoded(bytes: &[u8]) -> String {
    let group = |chunk: &[u8]| {
        let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        let digit = |at| if at <= chunk.len() { DIGITS[(bits >> (18 - 6 * at)) as usize & 63] } else { b'=' };
        [0, 1, 2, 3].map(|at| char::from(digit(at)))
    };
    bytes.chunks(3).flat_map(group).collect()
}

/// Decodes base64, with or without padding.
#[track_caller]
pub fn decoded(text: &str) -> Vec<u8> {
    let value = |digit: &u8| DIGITS.iter().position(|known| known == digit).expect("base64") as u32;
    let digits: Vec<u32> = text.trim_end_matches('=').as_bytes().iter().map(value).collect();
    let group = |chunk: &[u32]| {
        let bits = (0..4).fold(0, |bits, at| bits << 6 | chunk.get(at).copied().unwrap_or(0));
        bits.to_be_bytes().into_iter().skip(1).take(chunk.len() - 1)
    };
    digits.chunks(4).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"foob\xff", "Zm9vYv8=")]
        {
            assert_eq!(encoded(bytes), text);
            assert_eq!(decoded(text), bytes);
        }
    }
}
