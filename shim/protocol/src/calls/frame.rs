//! Parses and builds ttrpc's frames.
//!
//! ```text
//!   length: u32 │ stream: u32 │ kind: u8 │ flags: u8 │ payload, of `length` bytes      numbers are big-endian
//! ```
//!
//! Pure: the result does not depend on how the bytes are split. Must not: read, write, or allocate for a claimed
//! length.

use bowline_model::json::handover::bytes;
use protobuf::Message;
use serde::{Deserialize, Serialize};

/// The length of a header, in bytes.
const HEADER: usize = 10;
/// The longest payload, in bytes: the protocol's limit.
pub const LONGEST: usize = 4 << 20;

/// The kind of a frame that begins a call.
pub const REQUEST: u8 = 1;
/// The kind of a frame that ends a call.
pub const RESPONSE: u8 = 2;
/// The kind of a frame with more data of a streaming call.
pub const DATA: u8 = 3;

/// The flags of a request that begins a stream: no data follows (1), or more does (2).
pub const STREAMS: u8 = 1 | 2;

/// The header before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The length of the payload, in bytes.
    pub length: u32,
    /// The number of the call.
    pub stream: u32,
    /// One of the kinds above, or another.
    pub kind: u8,
    /// Their meaning depends on the kind.
    pub flags: u8,
}

impl Header {
    fn read([a, b, c, d, e, f, g, h, kind, flags]: [u8; HEADER]) -> Header {
        let (length, stream) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        Header { length, stream, kind, flags }
    }

    fn bytes(self) -> [u8; HEADER] {
        let ([a, b, c, d], [e, f, g, h]) = (self.length.to_be_bytes(), self.stream.to_be_bytes());
        [a, b, c, d, e, f, g, h, self.kind, self.flags]
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A complete frame: header and payload.
    Whole(Header, Vec<u8>),
    /// A frame over the limit. Its payload is skipped as it comes.
    TooLong(Header),
}

/// Finds frames in bytes that come piece by piece.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// The bytes of an incomplete frame.
    #[serde(with = "bytes")]
    partial: Vec<u8>,
    /// How many bytes of a skipped payload are still to come.
    passed_over: u32,
}

impl Frames {
    /// Consumes `bytes` up to the end of the next complete frame; `None` when all bytes are consumed without one.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        self.pass_over(bytes);
        self.fill(HEADER, bytes);
        let header = Header::read(*self.partial.first_chunk()?);
        let length = header.length as usize;
        if length > LONGEST {
            self.partial = Vec::new();
            self.passed_over = header.length;
            self.pass_over(bytes);
            return Some(Frame::TooLong(header));
        }
        self.fill(HEADER + length, bytes);
        if self.partial.len() < HEADER + length {
            return None;
        }
        let mut payload = std::mem::take(&mut self.partial);
        payload.drain(..HEADER);
        Some(Frame::Whole(header, payload))
    }

    /// Extends the partial frame to `length` bytes, or as far as `bytes` go.
    fn fill(&mut self, length: usize, bytes: &mut &[u8]) {
        let missing = length.saturating_sub(self.partial.len()).min(bytes.len());
        let (taken, rest) = bytes.split_at(missing);
        self.partial.extend_from_slice(taken);
        *bytes = rest;
    }

    fn pass_over(&mut self, bytes: &mut &[u8]) {
        let passed_over = bytes.len().min(self.passed_over as usize);
        *bytes = &bytes[passed_over..];
        self.passed_over -= passed_over as u32;
    }
}

/// Appends the frame of `message` to `to`; false if the message is too long for one.
pub fn put(to: &mut Vec<u8>, stream: u32, kind: u8, message: &impl Message) -> bool {
    let length = message.compute_size();
    if length > LONGEST as u64 {
        return false;
    }
    let begin = to.len();
    to.extend(Header { length: length as u32, stream, kind, flags: 0 }.bytes());
    let written = message.write_to_vec(to).is_ok();
    if !written {
        to.truncate(begin);
    }
    written
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use ttrpc::proto::Request;

    use super::*;

    fn frame(length: usize, stream: u32, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let header = Header { length: length.try_into().unwrap(), stream, kind, flags };
        [&header.bytes(), payload].concat()
    }

    fn read(frames: &mut Frames, mut bytes: &[u8]) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next(&mut bytes)).collect()
    }

    #[test]
    fn what_is_put_together_is_taken_apart() {
        let request = Request { service: "s".into(), payload: vec![7; 300], ..Request::default() };
        let mut bytes = vec![1];
        assert!(put(&mut bytes, 0x0102_0305, REQUEST, &request));
        assert_eq!(bytes[5..11], [1, 2, 3, 5, REQUEST, 0]);
        let [Frame::Whole(header, payload)] = &read(&mut Frames::default(), &bytes[1..])[..] else { panic!() };
        assert_eq!((header.stream, header.kind, header.length as usize), (0x0102_0305, REQUEST, payload.len()));
        assert_eq!(Request::parse_from_bytes(payload).unwrap(), request);
    }

    #[test]
    fn the_longest_is_put_together_and_no_longer_one() {
        // A payload this long adds five bytes: one of tag, four of length.
        let of = |length: usize| Request { payload: vec![0; length], ..Request::default() };
        let mut bytes = Vec::new();
        assert!(put(&mut bytes, 1, REQUEST, &of(LONGEST - 5)));
        assert_eq!(bytes.len(), LONGEST + 10);
        assert!(!put(&mut bytes, 1, REQUEST, &of(LONGEST - 4)));
        assert_eq!(bytes.len(), LONGEST + 10, "nothing of it is left");
    }

    #[test]
    fn nothing_is_reserved_for_what_is_only_claimed() {
        let mut frames = Frames::default();
        assert_eq!(read(&mut frames, &frame(LONGEST, 1, REQUEST, 0, b"x")), []);
        assert!(frames.partial.capacity() < 100);
        let mut frames = Frames::default();
        let claimed = read(&mut frames, &frame(u32::MAX as usize, 1, REQUEST, 0, &[0; 100_000]));
        assert_eq!(claimed, [Frame::TooLong(Header { length: u32::MAX, stream: 1, kind: REQUEST, flags: 0 })]);
        assert_eq!((frames.partial.capacity(), frames.passed_over), (0, u32::MAX - 100_000));
    }

    #[test]
    fn what_is_behind_one_that_is_too_long_is_read() {
        let mut bytes = frame(LONGEST + 1, 1, REQUEST, 0, &vec![b'x'; LONGEST + 1]);
        bytes.extend(frame(1, 3, DATA, 4, b"y"));
        let frames = read(&mut Frames::default(), &bytes);
        let second = Header { length: 1, stream: 3, kind: DATA, flags: 4 };
        assert_eq!(frames[1..], [Frame::Whole(second, b"y".to_vec())]);
        assert!(matches!(frames[0], Frame::TooLong(Header { stream: 1, .. })));
    }

    fn any_frame() -> impl Strategy<Value = Vec<u8>> {
        let payload = prop_oneof![prop::collection::vec(any::<u8>(), 0..40), Just(vec![7; LONGEST + 3])];
        (payload, any::<u32>(), any::<u8>(), any::<u8>())
            .prop_map(|(payload, stream, kind, flags)| frame(payload.len(), stream, kind, flags, &payload))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_pieces_give_the_same_frames(
            frames in prop::collection::vec(any_frame(), 0..6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            rest in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let bytes = [frames.concat(), rest.clone()].concat();
            let mut whole = Frames::default();
            let expected = read(&mut whole, &bytes);
            prop_assert_eq!(expected.len(), frames.len());
            prop_assert_eq!(&whole.partial, &rest);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut pieces = Frames::default();
            let found: Vec<Frame> = cuts.windows(2).flat_map(|cut| read(&mut pieces, &bytes[cut[0]..cut[1]])).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(pieces, whole);
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            let all = read(&mut frames, &bytes);
            let mut one_by_one = Frames::default();
            let found: Vec<Frame> = bytes.chunks(1).flat_map(|byte| read(&mut one_by_one, byte)).collect();
            prop_assert_eq!(found, all);
            prop_assert_eq!(one_by_one, frames);
        }
    }
}
