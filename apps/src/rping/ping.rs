//! What a ping says: `rdma-ping-N: ` and a run of characters that begins one further with each N.
//!
//! ```text
//!  rdma-ping-0: ABCDE…xyzABC…\0
//!  rdma-ping-1: BCDEF…yzABCD…\0
//! ```

use std::io::Write;

/// The least that the stock rping takes: the text with its longest number, and the last 0.
pub(super) const BYTES_MIN: u32 = 23;
/// The most that the stock rping takes; the default of our server.
pub(super) const STOCK_BYTES_MAX: u32 = 65_535;
/// `A` to `z`, with what lies between the cases.
const CHARACTERS: u64 = (b'z' - b'A') as u64 + 1;
/// What memory holds before a ping goes there: no ping has such a byte.
pub(super) const POISON: u8 = 0xee;

/// A byte that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of {len} is {got:#04x}, and {want:#04x} was expected")]
pub(super) struct Mismatch {
    at: usize,
    len: usize,
    got: u8,
    want: u8,
}

/// Writes ping `number`, as long as `into`.
pub(super) fn fill(number: u64, into: &mut [u8]) {
    let mut text = [0; 40];
    let mut rest = &mut text[..];
    let written = write!(rest, "rdma-ping-{number}: ");
    debug_assert!(written.is_ok(), "20 digits fit");
    let free = rest.len();
    let text = &text[..text.len() - free];
    let head = text.len().min(into.len());
    into[..head].copy_from_slice(&text[..head]);
    let run = (0..CHARACTERS).cycle().skip(first_of(number));
    for (byte, character) in into[head..].iter_mut().zip(run) {
        *byte = b'A' + low_byte(character);
    }
    if let Some(last) = into.last_mut() {
        *last = 0;
    }
}

fn first_of(number: u64) -> usize {
    usize::from(low_byte(number % CHARACTERS))
}

/// Of a number below [`CHARACTERS`].
fn low_byte(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

/// The first byte in which `got` differs from `want`; a missing byte is none.
pub(super) fn compare(got: &[u8], want: &[u8]) -> Result<(), Mismatch> {
    // Equal slices in one go; byte by byte only to name the place.
    if got == want {
        return Ok(());
    }
    let differs = got.iter().zip(want).position(|(g, w)| g != w);
    let at = differs.unwrap_or(got.len().min(want.len()));
    Err(Mismatch {
        at,
        len: want.len(),
        got: got.get(at).copied().unwrap_or(POISON),
        want: want.get(at).copied().unwrap_or(POISON),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![POISON; len];
        fill(number, &mut bytes);
        bytes
    }

    #[test]
    fn pings_are_those_of_the_stock_rping() {
        // Printed by rping 44.0 with -v.
        let stock = [
            r"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqr",
            r"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqrs",
        ];
        for (number, text) in (0..).zip(stock) {
            assert_eq!(ping(number, 64), [text.as_bytes(), b"\0"].concat());
        }
        // The run comes back to its start after 58 pings.
        assert_eq!(ping(57, 16), b"rdma-ping-57: z\0");
        assert_eq!(ping(57, 17), b"rdma-ping-57: zA\0");
        assert_eq!(ping(58, 16), b"rdma-ping-58: A\0");
    }

    #[test]
    fn any_length_and_number_is_filled_to_the_last_byte() {
        for len in (0..200).chain([65_535]) {
            for number in [0, 9, 10, 57, 58, 1_000_000, u64::MAX] {
                let bytes = ping(number, len);
                assert!(!bytes.contains(&POISON), "{number} {len}");
                assert_eq!(bytes.iter().filter(|b| **b == 0).count(), len.min(1));
            }
        }
    }

    #[test]
    fn the_place_and_both_values_are_named() {
        let want = ping(5, 64);
        let mut got = want.clone();
        assert_eq!(compare(&got, &want), Ok(()));
        got[40] = b'!';
        let text = compare(&got, &want).map_err(|e| e.to_string());
        let told = "byte 40 of 64 is 0x21, and 0x61 was expected";
        assert_eq!(text, Err(told.to_owned()));
        assert!(compare(&want[..63], &want).is_err());
        assert!(compare(&ping(6, 64), &want).is_err());
    }
}
